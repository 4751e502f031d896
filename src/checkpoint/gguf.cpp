#include "checkpoint/gguf.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "base/error.h"

namespace tandem::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxParts = 1000;
constexpr const char* kPartKey = "split.no";
constexpr const char* kPartsKey = "split.count";
constexpr const char* kTensorsKey = "split.tensors.count";

// PREFIX-00002-of-00005.gguf
struct PartName {
  std::string prefix;
  uint64_t number = 0;  // from 1
  uint64_t count = 0;

  std::string file(uint64_t other) const { return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, other, count); }
};

std::optional<PartName> parse_part_name(const std::string& name) {
  constexpr size_t kTail = 20;  // "-00002-of-00005.gguf"
  if (name.size() <= kTail) return std::nullopt;
  PartName part;
  part.prefix = name.substr(0, name.size() - kTail);
  const char* tail = name.data() + name.size() - kTail;
  const auto number = [&](size_t at, uint64_t& out) {
    return std::from_chars(tail + at, tail + at + 5, out).ptr == tail + at + 5;
  };
  if (!number(1, part.number) || !number(10, part.count) || name != part.file(part.number)) return std::nullopt;
  return part;
}

// How many parts the file says it is of: 1 where it says nothing.
uint64_t part_count(const GgufMetadata& metadata) {
  return metadata.find(kPartsKey) == nullptr ? 1 : metadata.unsigned_integer(kPartsKey);
}

}  // namespace

Gguf Gguf::open(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) base::bad_input(path.string(), "does not exist");
  if (!fs::is_regular_file(path, error)) base::bad_input(path.string(), "is not a file");
  Gguf gguf;
  gguf.metadata_ = gguf.open_part(path);
  const uint64_t count = part_count(gguf.metadata_);
  const std::optional<PartName> name = parse_part_name(path.filename().string());
  if (count > 1) {
    gguf.open_split(path, count);
  } else if (name && name->count > 1) {
    base::bad_input(path.string(), "is named as part {} of {}, but has no {} that says so", name->number, name->count,
                    kPartsKey);
  }
  gguf.index_names();
  return gguf;
}

GgufMetadata Gguf::open_part(const fs::path& path) {
  WatchedFile file = WatchedFile::open(path);
  const auto part = static_cast<uint32_t>(parts_.size());
  GgufHeader header = parse_gguf_header([&](uint64_t offset, std::span<std::byte> out) { file.read_at(offset, out); },
                                        file.bytes(), part, path.string());
  parts_.push_back({path, file.bytes(), file.modified(), header.version, header.data_offset, header.tensors.size()});
  files_.push_back(std::move(file));
  std::move(header.tensors.begin(), header.tensors.end(), std::back_inserter(tensors_));
  return std::move(header.metadata);
}

void Gguf::open_split(const fs::path& path, uint64_t parts) {
  const uint64_t tensors = metadata_.unsigned_integer(kTensorsKey);
  const std::optional<PartName> name = parse_part_name(path.filename().string());
  if (!name || name->count != parts) {
    base::bad_input(path.string(), "is one of {} parts, but is not named ...-0000K-of-{:05}.gguf", parts, parts);
  }
  if (parts > kMaxParts) {
    base::bad_input(path.string(), "is one of {} parts; at most {} are allowed", parts, kMaxParts);
  }
  *this = Gguf();  // parts are opened in their order, whichever was named
  for (uint64_t i = 0; i < parts; ++i) {
    const fs::path other = path.parent_path() / name->file(i + 1);
    std::error_code error;
    if (!fs::exists(other, error)) {
      base::bad_input(other.string(), "is missing; {} is part {} of {}", path.filename().string(), name->number, parts);
    }
    GgufMetadata metadata = open_part(other);
    if (part_count(metadata) != parts || metadata.unsigned_integer(kTensorsKey) != tensors) {
      base::bad_input(other.string(), "is one of {} parts with {} tensors in all, but {} is one of {} with {}",
                      part_count(metadata), metadata.unsigned_integer(kTensorsKey), path.filename().string(), parts,
                      tensors);
    }
    if (metadata.unsigned_integer(kPartKey) != i) {
      base::bad_input(other.string(), "is named as part {}, but its {} is {}, counted from 0", i + 1, kPartKey,
                      metadata.unsigned_integer(kPartKey));
    }
    if (i == 0) metadata_ = std::move(metadata);
  }
  if (tensors_.size() != tensors) {
    base::bad_input(path.string(), "and its other parts should have {} tensors, but have {}", tensors, tensors_.size());
  }
}

void Gguf::index_names() {
  by_name_.reserve(tensors_.size());
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const auto [other, fresh] = by_name_.emplace(tensors_[i].name, i);
    if (fresh) continue;
    base::bad_input(parts_[tensors_[i].part].path.string(), "holds tensor {}, which is in {} too", tensors_[i].name,
                    parts_[tensors_[other->second].part].path.filename().string());
  }
}

const GgufTensor* Gguf::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const GgufTensor& Gguf::at(std::string_view name) const {
  const GgufTensor* tensor = find(name);
  if (tensor == nullptr) base::bad_input(parts_.front().path.string(), "lacks the tensor {}", name);
  return *tensor;
}

void Gguf::read(const GgufTensor& tensor, uint64_t offset, std::span<std::byte> out) const {
  if (offset > tensor.bytes || out.size() > tensor.bytes - offset) {
    base::internal_error(parts_[tensor.part].path.string(), "bytes {} to {} were to be read of tensor {}, which has {}",
                         offset, offset + out.size(), tensor.name, tensor.bytes);
  }
  files_[tensor.part].read_at(tensor.offset + offset, out);
}

std::vector<std::byte> Gguf::read(const GgufTensor& tensor) const {
  std::vector<std::byte> out(tensor.bytes);
  read(tensor, 0, out);
  return out;
}

}  // namespace tandem::checkpoint
