#include "checkpoint/gguf_metadata.h"

#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"

namespace tandem::checkpoint {

namespace {

struct GgufTypeRow {
  std::string_view name;
  size_t bytes;
};

constexpr uint64_t kMaxSigned = std::numeric_limits<int64_t>::max();

// In the order of the ids.
constexpr std::array<GgufTypeRow, kGgufTypes> kGgufTypeRows = {{{"u8", 1},
                                                                {"i8", 1},
                                                                {"u16", 2},
                                                                {"i16", 2},
                                                                {"u32", 4},
                                                                {"i32", 4},
                                                                {"f32", 4},
                                                                {"bool", 1},
                                                                {"string", 0},
                                                                {"array", 0},
                                                                {"u64", 8},
                                                                {"i64", 8},
                                                                {"f64", 8}}};

template <typename Number>
Number number_at(const GgufValue& value, size_t index) {
  Number number;
  std::memcpy(&number, value.numbers.data() + index * sizeof number, sizeof number);
  return number;
}

// An integer's two's complement bits, and whether they are to be read as negative.
struct Integer {
  uint64_t bits = 0;
  bool negative = false;
};

template <typename Number>
Integer integer_of(const GgufValue& value, size_t index) {
  const auto number = number_at<Number>(value, index);
  return {static_cast<uint64_t>(number), number < Number{0}};
}

std::optional<Integer> integer_at(const GgufValue& value, size_t index) {
  switch (value.type) {
    case GgufType::kU8:
      return integer_of<uint8_t>(value, index);
    case GgufType::kI8:
      return integer_of<int8_t>(value, index);
    case GgufType::kU16:
      return integer_of<uint16_t>(value, index);
    case GgufType::kI16:
      return integer_of<int16_t>(value, index);
    case GgufType::kU32:
      return integer_of<uint32_t>(value, index);
    case GgufType::kI32:
      return integer_of<int32_t>(value, index);
    case GgufType::kU64:
      return integer_of<uint64_t>(value, index);
    case GgufType::kI64:
      return integer_of<int64_t>(value, index);
    default:
      return std::nullopt;
  }
}

std::optional<double> double_at(const GgufValue& value, size_t index) {
  if (value.type == GgufType::kF32) return number_at<float>(value, index);
  if (value.type == GgufType::kF64) return number_at<double>(value, index);
  const std::optional<Integer> integer = integer_at(value, index);
  if (!integer) return std::nullopt;
  return integer->negative ? static_cast<double>(static_cast<int64_t>(integer->bits))
                           : static_cast<double>(integer->bits);
}

std::string printable_start(const std::string& text) {
  constexpr size_t kShown = 64;
  std::string out;
  for (const char c : text.substr(0, kShown)) out += c >= ' ' && c <= '~' ? c : '.';
  return text.size() > kShown ? fmt::format("\"{}\" and {} bytes more", out, text.size() - kShown)
                              : fmt::format("\"{}\"", out);
}

}  // namespace

size_t gguf_type_bytes(GgufType type) {
  return kGgufTypeRows[static_cast<size_t>(type)].bytes;
}

std::string_view gguf_type_name(GgufType type) {
  return kGgufTypeRows[static_cast<size_t>(type)].name;
}

GgufMetadata::GgufMetadata(std::vector<Pair> pairs, std::string source)
    : pairs_(std::move(pairs)), source_(std::move(source)) {
  by_key_.reserve(pairs_.size());
  for (uint32_t i = 0; i < pairs_.size(); ++i) {
    if (!by_key_.emplace(pairs_[i].first, i).second) base::bad_input(source_, "has the key {} twice", pairs_[i].first);
  }
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = by_key_.find(std::string(key));
  return found == by_key_.end() ? nullptr : &pairs_[found->second].second;
}

const GgufValue& GgufMetadata::at(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) base::bad_input(source_, "lacks the key {}", key);
  return *value;
}

void GgufMetadata::wrong_kind(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  base::bad_input(source_, "{} is {}, but {} is expected", key, describe(value), wanted);
}

uint64_t GgufMetadata::unsigned_integer(std::string_view key) const {
  constexpr std::string_view kWanted = "a whole number, not negative,";
  const GgufValue& value = at(key);
  if (value.is_array) wrong_kind(key, value, kWanted);
  const std::optional<Integer> integer = integer_at(value, 0);
  if (!integer || integer->negative) wrong_kind(key, value, kWanted);
  return integer->bits;
}

int64_t GgufMetadata::integer(std::string_view key) const {
  const GgufValue& value = at(key);
  const std::optional<Integer> integer = value.is_array ? std::nullopt : integer_at(value, 0);
  if (!integer || (!integer->negative && integer->bits > kMaxSigned)) wrong_kind(key, value, "a whole number");
  return static_cast<int64_t>(integer->bits);
}

double GgufMetadata::number(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.is_array) wrong_kind(key, value, "a number");
  const std::optional<double> number = double_at(value, 0);
  if (!number) wrong_kind(key, value, "a number");
  return *number;
}

bool GgufMetadata::boolean(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.is_array || value.type != GgufType::kBool) wrong_kind(key, value, "a bool");
  return value.numbers[0] != std::byte{0};
}

const std::string& GgufMetadata::string(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.is_array || value.type != GgufType::kString) wrong_kind(key, value, "a string");
  return value.strings[0];
}

std::vector<int64_t> GgufMetadata::integers(std::string_view key) const {
  const GgufValue& value = at(key);
  if (!value.is_array) wrong_kind(key, value, "an array of integers");
  std::vector<int64_t> out;
  for (size_t i = 0; i < value.count; ++i) {
    const std::optional<Integer> integer = integer_at(value, i);
    if (!integer) wrong_kind(key, value, "an array of integers");
    if (!integer->negative && integer->bits > kMaxSigned) {
      base::bad_input(source_, "{} holds {}, which is too large", key, integer->bits);
    }
    out.push_back(static_cast<int64_t>(integer->bits));
  }
  return out;
}

std::vector<double> GgufMetadata::numbers(std::string_view key) const {
  const GgufValue& value = at(key);
  if (!value.is_array) wrong_kind(key, value, "an array of numbers");
  std::vector<double> out;
  for (size_t i = 0; i < value.count; ++i) {
    const std::optional<double> number = double_at(value, i);
    if (!number) wrong_kind(key, value, "an array of numbers");
    out.push_back(*number);
  }
  return out;
}

const std::vector<std::string>& GgufMetadata::strings(std::string_view key) const {
  const GgufValue& value = at(key);
  if (!value.is_array || value.type != GgufType::kString) wrong_kind(key, value, "an array of strings");
  return value.strings;
}

std::string describe(const GgufValue& value) {
  const std::string_view type = gguf_type_name(value.type);
  if (value.is_array) return fmt::format("{} {}{}", value.count, type, value.count == 1 ? "" : "s");
  if (value.type == GgufType::kString) return fmt::format("{} {}", type, printable_start(value.strings[0]));
  if (value.type == GgufType::kBool) return fmt::format("{} {}", type, value.numbers[0] != std::byte{0});
  if (value.type == GgufType::kF32) return fmt::format("{} {}", type, number_at<float>(value, 0));
  if (value.type == GgufType::kF64) return fmt::format("{} {}", type, number_at<double>(value, 0));
  const Integer integer = integer_at(value, 0).value_or(Integer{});
  return integer.negative ? fmt::format("{} {}", type, static_cast<int64_t>(integer.bits))
                          : fmt::format("{} {}", type, integer.bits);
}

}  // namespace tandem::checkpoint
