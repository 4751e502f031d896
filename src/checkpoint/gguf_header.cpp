#include "checkpoint/gguf_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fmt/ranges.h>
#include <limits>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/tensor.h"

namespace tandem::checkpoint {

namespace {

using numeric::GgmlTraits;
using numeric::GgmlType;

constexpr uint64_t kMaxElements = std::numeric_limits<int64_t>::max();
// The least that a pair takes (a key's length, a type, a bool) and a tensor entry (a name's length, one dimension).
constexpr uint64_t kLeastPairBytes = 13;
constexpr uint64_t kLeastEntryBytes = 32;

bool printable_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// Reads the head from its beginning, a window at a time. What is asked for is checked against the file and the limit
// before anything is allocated.
class HeadReader {
 public:
  HeadReader(const GgufRead& read_at, uint64_t file_bytes, const std::string& source)
      : read_at_(read_at), file_bytes_(file_bytes), source_(source) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return file_bytes_ - position_; }
  const std::string& source() const { return source_; }

  // Makes sure that `bytes` more may be read for `what`.
  void need(uint64_t bytes, std::string_view what) const {
    if (bytes > remaining()) {
      base::bad_input(source_, "is truncated: {} at byte {} takes {} bytes, but the file holds only {}", what,
                      position_, bytes, file_bytes_);
    }
    if (bytes > kMaxGgufHeaderBytes - position_) {
      base::bad_input(source_, "has more than {} bytes before its data: {} at byte {} takes {}", kMaxGgufHeaderBytes,
                      what, position_, bytes);
    }
  }

  void read(std::span<std::byte> out, std::string_view what) {
    need(out.size(), what);
    if (out.empty()) return;
    if (out.size() > kWindow) {
      read_at_(position_, out);
      position_ += out.size();
      return;
    }
    if (position_ < window_start_ || position_ + out.size() > window_start_ + window_.size()) {
      window_.resize(std::min<uint64_t>(kWindow, remaining()));
      window_start_ = position_;
      read_at_(window_start_, window_);
    }
    std::memcpy(out.data(), window_.data() + (position_ - window_start_), out.size());
    position_ += out.size();
  }

  template <typename Number>
  Number number(std::string_view what) {
    Number value;
    read(std::as_writable_bytes(std::span(&value, 1)), what);
    return value;
  }

  std::string string(uint64_t max_bytes, std::string_view what) {
    const auto length = number<uint64_t>(what);
    if (length > max_bytes) {
      base::bad_input(source_, "{} at byte {} would have {} bytes; at most {} are allowed", what, position_ - 8, length,
                      max_bytes);
    }
    need(length, what);
    std::string text(length, '\0');
    read(std::as_writable_bytes(std::span(text)), what);
    return text;
  }

 private:
  static constexpr uint64_t kWindow = 64 << 10;

  const GgufRead& read_at_;
  uint64_t file_bytes_;
  const std::string& source_;
  uint64_t position_ = 0;
  uint64_t window_start_ = 0;
  std::vector<std::byte> window_;
};

uint32_t read_version(HeadReader& in) {
  const auto magic = in.number<uint32_t>("the magic");
  if (magic == 0x47475546) base::bad_input(in.source(), "is a big-endian GGUF file; only little-endian ones are read");
  if (magic != 0x46554747) base::bad_input(in.source(), "is not a GGUF file: it begins with 0x{:08X}", magic);
  const auto version = in.number<uint32_t>("the version");
  if ((version & 0xFFFF) == 0 && version != 0) {
    base::bad_input(in.source(), "is a big-endian GGUF file (version 0x{:08X}); only little-endian ones are read",
                    version);
  }
  if (version != 2 && version != 3) {
    base::bad_input(in.source(), "is GGUF version {}; versions 2 and 3 are read", version);
  }
  return version;
}

GgufType read_value_type(HeadReader& in, std::string_view key) {
  const auto id = in.number<uint32_t>(key);
  if (id >= kGgufTypes) base::bad_input(in.source(), "the value of {} has the unknown type {}", key, id);
  return static_cast<GgufType>(id);
}

GgufValue read_value(HeadReader& in, const std::string& key) {
  GgufValue value;
  value.type = read_value_type(in, key);
  value.is_array = value.type == GgufType::kArray;
  if (value.is_array) {
    value.type = read_value_type(in, key);
    if (value.type == GgufType::kArray)
      base::bad_input(in.source(), "{} is an array of arrays, which are not read", key);
    value.count = in.number<uint64_t>(key);
  }
  const uint64_t least = value.type == GgufType::kString ? 8 : gguf_type_bytes(value.type);
  if (value.count > in.remaining() / least) {
    base::bad_input(in.source(), "{} would have {} elements of at least {} bytes, but only {} bytes follow", key,
                    value.count, least, in.remaining());
  }
  if (value.type == GgufType::kString) {
    for (uint64_t i = 0; i < value.count; ++i) value.strings.push_back(in.string(kMaxGgufHeaderBytes, key));
    return value;
  }
  in.need(value.count * least, key);
  value.numbers.resize(value.count * least);
  in.read(value.numbers, key);
  if (value.type == GgufType::kBool) {
    for (const std::byte byte : value.numbers) {
      if (byte > std::byte{1}) {
        base::bad_input(in.source(), "{} holds the bool {}; 0 and 1 are known", key, std::to_integer<int>(byte));
      }
    }
  }
  return value;
}

GgufMetadata read_pairs(HeadReader& in, uint64_t count) {
  std::vector<GgufMetadata::Pair> pairs;
  for (uint64_t i = 0; i < count; ++i) {
    std::string key = in.string(kMaxGgufKeyBytes, "a key");
    if (key.empty() || !printable_ascii(key)) {
      base::bad_input(in.source(), "key {} of {} is {}", i + 1, count, key.empty() ? "empty" : "not printable ASCII");
    }
    GgufValue value = read_value(in, key);
    pairs.emplace_back(std::move(key), std::move(value));
  }
  return GgufMetadata(std::move(pairs), in.source());
}

uint64_t read_alignment(const GgufMetadata& metadata, const std::string& source) {
  const char* const key = "general.alignment";
  const GgufValue* value = metadata.find(key);
  if (value == nullptr) return kDefaultGgufAlignment;
  if (value->is_array || value->type != GgufType::kU32) base::bad_input(source, "{} is not one u32", key);
  const uint64_t alignment = metadata.unsigned_integer(key);
  if (!std::has_single_bit(alignment)) base::bad_input(source, "{} is {}, not a power of two", key, alignment);
  return alignment;
}

std::vector<int64_t> read_shape(HeadReader& in, const std::string& name) {
  const auto rank = in.number<uint32_t>(name);
  if (rank < 1 || rank > kMaxGgufRank) {
    base::bad_input(in.source(), "tensor {} has {} dimensions; 1 to {} are allowed", name, rank, kMaxGgufRank);
  }
  std::vector<int64_t> shape;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto extent = in.number<uint64_t>(name);
    if (extent == 0) base::bad_input(in.source(), "tensor {} has a dimension of 0", name);
    if (extent > kMaxElements / elements) {
      base::bad_input(in.source(), "tensor {} has more than {} elements", name, kMaxElements);
    }
    elements *= extent;
    shape.push_back(static_cast<int64_t>(extent));
  }
  std::reverse(shape.begin(), shape.end());  // the file has the contiguous dimension first
  return shape;
}

uint64_t element_count(const GgufTensor& tensor) {
  uint64_t elements = 1;
  for (const int64_t extent : tensor.shape) elements *= static_cast<uint64_t>(extent);
  return elements;
}

const GgmlTraits& read_type(HeadReader& in, const GgufTensor& tensor) {
  const auto id = in.number<uint32_t>(tensor.name);
  const GgmlTraits* traits = numeric::find_ggml_type(id);
  if (traits != nullptr) return *traits;
  const std::string_view reason = numeric::refused_ggml_type(id);
  if (!reason.empty()) base::bad_input(in.source(), "tensor {}: type {} {}", tensor.name, id, reason);
  base::bad_input(in.source(), "tensor {} has the unknown type {}", tensor.name, id);
}

// One entry; the offset is from the start of the data here.
GgufTensor read_entry(HeadReader& in, uint32_t part) {
  GgufTensor tensor;
  tensor.part = part;
  tensor.name = in.string(kMaxGgufNameBytes, "a tensor's name");
  if (tensor.name.empty() || !printable_ascii(tensor.name)) {
    base::bad_input(in.source(), "the tensor's name at byte {} is {}", in.position() - tensor.name.size(),
                    tensor.name.empty() ? "empty" : "not printable ASCII");
  }
  tensor.shape = read_shape(in, tensor.name);
  const GgmlTraits& traits = read_type(in, tensor);
  tensor.type = traits.type;
  if (tensor.shape.back() % traits.block_elements != 0) {
    base::bad_input(in.source(), "tensor {} ({}) has rows of {} elements, not whole blocks of {}", tensor.name,
                    describe(tensor), tensor.shape.back(), traits.block_elements);
  }
  const uint64_t blocks = element_count(tensor) / static_cast<uint64_t>(traits.block_elements);
  if (blocks > kMaxElements / static_cast<uint64_t>(traits.block_bytes)) {
    base::bad_input(in.source(), "tensor {} ({}) has more than {} bytes", tensor.name, describe(tensor), kMaxElements);
  }
  tensor.bytes = blocks * static_cast<uint64_t>(traits.block_bytes);
  tensor.offset = in.number<uint64_t>(tensor.name);
  return tensor;
}

uint64_t padded(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) & ~(alignment - 1);
}

// Whether the tensor takes `room` bytes because its Q2_0 has groups of 128 weights in 34 bytes, under the id of
// upstream's groups of 64 in 18: an early fork wrote such files, which no field of the file tells apart.
bool is_group_128(const GgufTensor& tensor, uint64_t room, uint64_t alignment) {
  constexpr uint64_t kGroup = 128;
  constexpr uint64_t kGroupBytes = 34;
  if (tensor.type != GgmlType::kQ2_0 || tensor.shape.back() % kGroup != 0) return false;
  const uint64_t bytes = element_count(tensor) / kGroup * kGroupBytes;
  return room == bytes || room == padded(bytes, alignment);
}

[[noreturn]] void refuse_group_128(const GgufTensor& tensor, const std::string& source) {
  base::bad_input(
      source,
      "tensor {} ({}) is stored in groups of 128 weights, as a fork of the format once wrote under the type id "
      "of Q2_0; only groups of 64 are read: the file has to be made again",
      tensor.name, describe(tensor));
}

// Each tensor must begin where the padding of the one before it ends, and the last must end within the file.
void check_layout(const GgufHeader& header, uint64_t file_bytes, const std::string& source) {
  const uint64_t data_bytes = file_bytes < header.data_offset ? 0 : file_bytes - header.data_offset;
  uint64_t position = 0;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const GgufTensor& tensor = header.tensors[i];
    if (tensor.offset != position) {
      base::bad_input(source, "tensor {} begins at byte {} of the data, but {} ends at byte {} with its padding",
                      tensor.name, tensor.offset, i == 0 ? "the header" : header.tensors[i - 1].name, position);
    }
    // What the file leaves to the tensor, which may be less than it needs; wraps where the next one lies before it.
    const uint64_t end = i + 1 < header.tensors.size() ? header.tensors[i + 1].offset : data_bytes;
    const uint64_t need = padded(tensor.bytes, header.alignment);
    if (end - position != need && is_group_128(tensor, end - position, header.alignment)) {
      refuse_group_128(tensor, source);
    }
    if (tensor.bytes > data_bytes || position > data_bytes - tensor.bytes) {
      base::bad_input(source, "tensor {} ({}) ends at byte {} of the data, but the file holds only {}: it is truncated",
                      tensor.name, describe(tensor), position + tensor.bytes, data_bytes);
    }
    position += need;
  }
}

void refuse_twice(const std::vector<GgufTensor>& tensors, const std::string& source) {
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  for (const GgufTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) base::bad_input(source, "tensor {} stands twice in the file", tensor.name);
  }
}

}  // namespace

std::string describe(const GgufTensor& tensor) {
  return fmt::format("{} {}", numeric::ggml_type(tensor.type).name, describe_shape(tensor.shape));
}

GgufHeader parse_gguf_header(const GgufRead& read_at, uint64_t file_bytes, uint32_t part, const std::string& source) {
  HeadReader in(read_at, file_bytes, source);
  GgufHeader header;
  header.version = read_version(in);
  const auto tensors = in.number<uint64_t>("the number of tensors");
  const auto pairs = in.number<uint64_t>("the number of key-value pairs");
  if (tensors > in.remaining() / kLeastEntryBytes || pairs > in.remaining() / kLeastPairBytes) {
    base::bad_input(source, "would have {} key-value pairs and {} tensors, but only {} bytes follow", pairs, tensors,
                    in.remaining());
  }
  header.metadata = read_pairs(in, pairs);
  header.alignment = read_alignment(header.metadata, source);
  for (uint64_t i = 0; i < tensors; ++i) header.tensors.push_back(read_entry(in, part));
  header.data_offset = padded(in.position(), header.alignment);
  refuse_twice(header.tensors, source);
  check_layout(header, file_bytes, source);
  for (GgufTensor& tensor : header.tensors) tensor.offset += header.data_offset;
  return header;
}

}  // namespace tandem::checkpoint
