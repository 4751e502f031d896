// The key-value pairs of a GGUF file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tandem::checkpoint {

// By the ids that files hold.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
inline constexpr uint32_t kGgufTypes = 13;

// Bytes of one number or bool; 0 for strings and arrays.
size_t gguf_type_bytes(GgufType type);
std::string_view gguf_type_name(GgufType type);  // "u32", "string"

struct GgufValue {
  GgufType type = GgufType::kU32;  // of the elements where it is an array; never kArray
  bool is_array = false;
  uint64_t count = 1;                // elements; 1 where it is no array
  std::vector<std::byte> numbers;    // little-endian, side by side, as in the file; a bool is 0 or 1
  std::vector<std::string> strings;  // any bytes, UTF-8 or not
};

// Keys in the file's order, each once. Immutable after reading; access from several threads is safe. The typed
// accessors throw base::Error{kBadInput} with the file, the key and what is there instead: where the key is missing, or
// of another kind. Writers disagree about the width of integers, so any integer type is taken where the value fits.
class GgufMetadata {
 public:
  using Pair = std::pair<std::string, GgufValue>;

  GgufMetadata() = default;
  // `source` names the file in messages. Throws base::Error{kBadInput} where a key stands twice.
  GgufMetadata(std::vector<Pair> pairs, std::string source);

  const std::vector<Pair>& pairs() const { return pairs_; }
  const GgufValue* find(std::string_view key) const;  // null where absent
  const GgufValue& at(std::string_view key) const;

  uint64_t unsigned_integer(std::string_view key) const;
  int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  // an integer or a float; integers beyond 2^53 are rounded
  bool boolean(std::string_view key) const;
  const std::string& string(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;
  const std::vector<std::string>& strings(std::string_view key) const;

 private:
  [[noreturn]] void wrong_kind(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  std::vector<Pair> pairs_;
  std::string source_;
  std::unordered_map<std::string, uint32_t> by_key_;
};

// "u32 12", "3 strings": for listings and messages. Text is printable ASCII of at most about 80 bytes.
std::string describe(const GgufValue& value);

}  // namespace tandem::checkpoint
