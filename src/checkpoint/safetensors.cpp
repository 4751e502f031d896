#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/json_scanner.h"

namespace tandem::checkpoint {

namespace {

constexpr uint64_t kMaxInteger = std::numeric_limits<int64_t>::max();
constexpr int kIndexDepth = 4;

// A name that may be printed in one line and used as a key.
void check_name(std::string_view name, std::string_view what, size_t max_bytes, const JsonScanner& scanner) {
  if (name.empty()) scanner.fail("an empty {} name", what);
  if (name.size() > max_bytes) {
    scanner.fail("a {} name of {} bytes; at most {} are allowed", what, name.size(), max_bytes);
  }
  if (has_control_characters(name)) scanner.fail("a {} name holds a control character", what);
}

void skip_metadata(JsonScanner& scanner) {
  std::unordered_set<std::string> keys;
  scanner.object([&](std::string_view key) {
    if (!keys.emplace(key).second) scanner.fail("__metadata__ has a key twice");
    if (scanner.peek() != '"') scanner.fail("the values of __metadata__ must be strings");
    (void)scanner.string();
  });
}

// Bytes of a dense array; nullopt where the product leaves 63 bits or does not fill whole bytes.
std::optional<uint64_t> dense_bytes(const std::vector<int64_t>& shape, Dtype dtype) {
  uint64_t elements = 1;
  // A zero dimension makes the array empty however large the others are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) elements = 0;
  for (const int64_t extent : shape) {
    if (elements != 0 && static_cast<uint64_t>(extent) > kMaxInteger / elements) return std::nullopt;
    elements *= static_cast<uint64_t>(extent);
  }
  const auto bits = static_cast<uint64_t>(dtype_bits(dtype));
  if (elements > kMaxInteger / bits || elements * bits % 8 != 0) return std::nullopt;
  return elements * bits / 8;
}

// Parses one tensor's entry; tensor.offset is from the start of the data here.
void parse_entry(JsonScanner& scanner, Tensor& tensor, const std::string& source) {
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
  uint64_t end = 0;
  const auto once = [&](bool& seen, std::string_view key) {
    if (seen) scanner.fail("tensor {} has \"{}\" twice", tensor.name, key);
    seen = true;
  };
  const auto dtype = [&] {
    once(has_dtype, "dtype");
    const std::string name(scanner.string());
    const std::optional<Dtype> known = dtype_from_name(name);
    if (!known && !has_control_characters(name) && name.size() <= 32) {
      base::bad_input(source, "tensor {} has the unknown dtype \"{}\"", tensor.name, name);
    }
    if (!known) base::bad_input(source, "tensor {} has an unknown dtype", tensor.name);
    tensor.dtype = *known;
  };
  const auto shape = [&] {
    once(has_shape, "shape");
    scanner.array([&] {
      if (tensor.shape.size() == kMaxRank) scanner.fail("tensor {} has more than {} dimensions", tensor.name, kMaxRank);
      tensor.shape.push_back(static_cast<int64_t>(scanner.unsigned_integer(kMaxInteger, "a dimension")));
    });
  };
  const auto offsets = [&] {
    once(has_offsets, "data_offsets");
    scanner.expect('[');
    tensor.offset = scanner.unsigned_integer(kMaxInteger, "a data offset");
    scanner.expect(',');
    end = scanner.unsigned_integer(kMaxInteger, "a data offset");
    scanner.expect(']');
  };
  scanner.object([&](std::string_view key) {
    if (key == "dtype") return dtype();
    if (key == "shape") return shape();
    if (key == "data_offsets") return offsets();
    scanner.fail("tensor {} has a key other than dtype, shape and data_offsets", tensor.name);
  });
  if (!has_dtype || !has_shape || !has_offsets) {
    scanner.fail("tensor {} lacks \"{}\"", tensor.name, !has_dtype ? "dtype" : !has_shape ? "shape" : "data_offsets");
  }
  const std::optional<uint64_t> bytes = dense_bytes(tensor.shape, tensor.dtype);
  if (!bytes) {
    base::bad_input(source, "tensor {} is {}, which is not a whole number of bytes below 2^63", tensor.name,
                    describe(tensor));
  }
  if (end < tensor.offset || end - tensor.offset != *bytes) {
    base::bad_input(source, "tensor {} is {}, {} bytes, but its data_offsets are {} to {}", tensor.name,
                    describe(tensor), *bytes, tensor.offset, end);
  }
  tensor.bytes = *bytes;
}

void refuse_duplicates(const std::vector<Tensor>& tensors, const std::string& source) {
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) base::bad_input(source, "tensor {} stands twice in the header", tensor.name);
  }
}

// The tensors, by offset, must tile the data exactly.
void check_layout(const std::vector<Tensor>& tensors, uint64_t data_bytes, const std::string& source) {
  uint64_t position = 0;
  const Tensor* previous = nullptr;
  for (const Tensor& tensor : tensors) {
    if (tensor.offset != position) {
      base::bad_input(source, "tensor {} begins at byte {} of the data, but {} ends at byte {}: {} of {} bytes",
                      tensor.name, tensor.offset, previous == nullptr ? "the header" : previous->name, position,
                      tensor.offset > position ? "a hole" : "an overlap",
                      tensor.offset > position ? tensor.offset - position : position - tensor.offset);
    }
    position += tensor.bytes;
    if (position > data_bytes) {
      base::bad_input(source, "tensor {} ({}) ends at byte {} of the data, but the file holds only {}: it is truncated",
                      tensor.name, describe(tensor), position, data_bytes);
    }
    previous = &tensor;
  }
  if (position != data_bytes) {
    base::bad_input(source, "the tensors end at byte {} of the data, but the file holds {}: {} bytes too many",
                    position, data_bytes, data_bytes - position);
  }
}

}  // namespace

uint64_t safetensors_header_bytes(std::span<const std::byte, 8> prefix, uint64_t file_bytes,
                                  const std::string& source) {
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(prefix[i]);
  if (length > kMaxHeaderBytes) {
    base::bad_input(source, "is not safetensors: its header would have {} bytes; at most {} are allowed", length,
                    kMaxHeaderBytes);
  }
  if (file_bytes < 8 || length > file_bytes - 8) {
    base::bad_input(source, "has a header of {} bytes, but the file holds only {} after its length: it is truncated",
                    length, file_bytes < 8 ? 0 : file_bytes - 8);
  }
  return length;
}

std::vector<Tensor> parse_safetensors_header(std::string_view header, uint64_t file_bytes, uint32_t shard,
                                             const std::string& source) {
  if (header.empty() || header.front() != '{')
    base::bad_input(source, "is not safetensors: its header is not an object");
  std::vector<Tensor> tensors;
  bool has_metadata = false;
  JsonScanner scanner(header, source);
  scanner.object([&](std::string_view key) {
    if (key == "__metadata__") {
      if (has_metadata) scanner.fail("__metadata__ stands twice");
      has_metadata = true;
      return skip_metadata(scanner);
    }
    check_name(key, "tensor", kMaxNameBytes, scanner);
    Tensor& tensor = tensors.emplace_back();
    tensor.name = key;
    tensor.shard = shard;
    parse_entry(scanner, tensor, source);
  });
  scanner.expect_end();
  refuse_duplicates(tensors, source);
  // Empty tensors may share an offset with the one that follows.
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  const uint64_t data_offset = 8 + header.size();
  if (file_bytes < data_offset) base::bad_input(source, "holds {} bytes, less than its header", file_bytes);
  check_layout(tensors, file_bytes - data_offset, source);
  for (Tensor& tensor : tensors) tensor.offset += data_offset;
  return tensors;
}

namespace {

// A shard must be a plain name inside the folder, so that an index can't reach other files. The file itself may be a
// link: download caches use them.
void check_file_name(std::string_view name, const JsonScanner& scanner) {
  check_name(name, "file", 255, scanner);
  if (name.find_first_of("/\\") != std::string_view::npos || name == "." || name == "..") {
    scanner.fail("the file name \"{}\" is not a plain name inside the folder", name);
  }
  if (!name.ends_with(".safetensors")) scanner.fail("the file \"{}\" is not named *.safetensors", name);
}

void sort_files(SafetensorsIndex& index) {
  std::vector<uint32_t> order(index.files.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return index.files[a] < index.files[b]; });
  std::vector<uint32_t> place(order.size());
  std::vector<std::string> files(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    files[i] = index.files[order[i]];
  }
  for (SafetensorsIndex::Entry& entry : index.entries) entry.file = place[entry.file];
  index.files = std::move(files);
}

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& source) {
  SafetensorsIndex index;
  std::unordered_map<std::string, uint32_t> files;
  std::unordered_set<std::string> keys;
  JsonScanner scanner(text, source);
  const auto entry = [&](std::string_view tensor) {
    check_name(tensor, "tensor", kMaxNameBytes, scanner);
    std::string name(tensor);  // the scanner reuses what `tensor` points to
    const std::string_view file = scanner.string();
    const auto [known, fresh] = files.try_emplace(std::string(file), static_cast<uint32_t>(files.size()));
    if (fresh) {
      check_file_name(file, scanner);
      index.files.emplace_back(file);
    }
    index.entries.push_back({std::move(name), known->second});
  };
  scanner.object([&](std::string_view key) {
    if (!keys.emplace(key).second) scanner.fail("a key stands twice in the index");
    // metadata.total_size is informational: published files disagree about what it counts.
    if (key != "weight_map") return scanner.skip_value(kIndexDepth - 1);
    scanner.object(entry);
  });
  scanner.expect_end();
  if (!keys.contains("weight_map")) base::bad_input(source, "lacks \"weight_map\"");
  std::unordered_set<std::string_view> names;
  names.reserve(index.entries.size());
  for (const SafetensorsIndex::Entry& mapped : index.entries) {
    if (!names.insert(mapped.tensor).second) base::bad_input(source, "maps tensor {} twice", mapped.tensor);
  }
  sort_files(index);
  return index;
}

}  // namespace tandem::checkpoint
