#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/watched_file.h"

namespace tandem::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = 64 << 20;
constexpr uint64_t kMaxIndexBytes = 512 << 20;
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& path) {
  Checkpoint checkpoint;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    checkpoint.folder_ = path;
    checkpoint.open_folder();
    checkpoint.read_config();
  } else if (path.extension() == ".safetensors") {
    checkpoint.folder_ = path.parent_path();
    checkpoint.open_shard(path);
    checkpoint.index_names();
  } else {
    base::bad_input(path.string(), "{}",
                    is_there(path) ? "is neither a folder nor a .safetensors file" : "does not exist");
  }
  return checkpoint;
}

void Checkpoint::open_folder() {
  const bool index = is_there(folder_ / kIndexName);
  const bool single = is_there(folder_ / kSingleName);
  if (index) {
    open_index(folder_ / kIndexName);
  } else if (single) {
    open_shard(folder_ / kSingleName);
    index_names();
  } else {
    base::bad_input(folder_.string(), "holds neither {} nor {}", kSingleName, kIndexName);
  }
  if (index && single && (shards_.size() != 1 || shards_.front().path.filename() != kSingleName)) {
    for (const Shard& shard : shards_) {
      if (shard.path.filename() == kSingleName) return;
    }
    base::bad_input(folder_.string(), "holds both {} and an index that does not name it: which is meant is not clear",
                    kSingleName);
  }
}

void Checkpoint::open_shard(const fs::path& path) {
  const std::string source = path.string();
  WatchedFile file = WatchedFile::open(path);
  if (file.bytes() < 8) base::bad_input(source, "holds {} bytes; a safetensors file begins with 8", file.bytes());
  std::array<std::byte, 8> prefix;
  file.read_at(0, prefix);
  // The length is checked against the file before anything is allocated.
  std::string header(safetensors_header_bytes(prefix, file.bytes(), source), '\0');
  file.read_at(8, std::as_writable_bytes(std::span(header)));
  std::vector<Tensor> tensors =
      parse_safetensors_header(header, file.bytes(), static_cast<uint32_t>(shards_.size()), source);
  tensors_.insert(tensors_.end(), std::make_move_iterator(tensors.begin()), std::make_move_iterator(tensors.end()));
  shards_.push_back({path, file.bytes(), 8 + header.size(), file.modified()});
  const auto shared = std::make_shared<const WatchedFile>(std::move(file));
  reads_.push_back([shared](const Tensor& tensor, uint64_t offset, std::span<std::byte> out) {
    shared->read_at(tensor.offset + offset, out);
  });
}

void Checkpoint::open_index(const fs::path& index_path) {
  const std::string source = index_path.string();
  const SafetensorsIndex index = parse_safetensors_index(base::read_text(index_path, kMaxIndexBytes), source);
  std::vector<uint64_t> mapped(index.files.size());
  for (const SafetensorsIndex::Entry& entry : index.entries) ++mapped[entry.file];
  tensors_.reserve(index.entries.size());
  for (size_t i = 0; i < index.files.size(); ++i) {
    const fs::path path = folder_ / index.files[i];
    if (!is_there(path)) {
      base::bad_input(path.string(), "is missing; {} of {} tensors of the checkpoint are in it", mapped[i],
                      index.entries.size());
    }
    open_shard(path);
  }
  index_names();
  for (const SafetensorsIndex::Entry& entry : index.entries) {
    const Tensor* tensor = find(entry.tensor);
    const std::string& file = index.files[entry.file];
    if (tensor == nullptr) base::bad_input(source, "maps tensor {} to {}, which does not hold it", entry.tensor, file);
    if (tensor->shard != entry.file) {
      base::bad_input(source, "maps tensor {} to {}, but it is in {}", entry.tensor, file, index.files[tensor->shard]);
    }
  }
  if (index.entries.size() == tensors_.size()) return;
  // Every entry was found and none stands twice, so a tensor is left over.
  std::unordered_map<std::string_view, uint32_t> left = by_name_;
  for (const SafetensorsIndex::Entry& entry : index.entries) left.erase(entry.tensor);
  for (const Tensor& tensor : tensors_) {
    if (!left.contains(tensor.name)) continue;
    base::bad_input(shards_[tensor.shard].path.string(), "holds tensor {} ({}), which the index does not map{}",
                    tensor.name, describe(tensor),
                    left.size() > 1 ? fmt::format(", and {} more", left.size() - 1) : std::string());
  }
}

std::string Shard::name() const {
  const std::string file = path.filename().string();
  return adopted_as.empty() ? file : adopted_as + "/" + file;
}

void Checkpoint::remove(const std::function<bool(std::string_view name)>& unwanted) {
  std::erase_if(tensors_, [&](const Tensor& tensor) { return unwanted(tensor.name); });
  std::vector<uint32_t> place(shards_.size(), UINT32_MAX);
  for (const Tensor& tensor : tensors_) place[tensor.shard] = 0;
  uint32_t kept = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (place[i] == UINT32_MAX) continue;
    if (kept != i) {
      shards_[kept] = std::move(shards_[i]);
      reads_[kept] = std::move(reads_[i]);
    }
    place[i] = kept++;
  }
  shards_.resize(kept);
  reads_.resize(kept);
  for (Tensor& tensor : tensors_) tensor.shard = place[tensor.shard];
  index_names();
}

void Checkpoint::adopt(Checkpoint&& other, const std::string& prefix, const std::string& as) {
  const auto wanted = [&](const Tensor& tensor) { return tensor.name.starts_with(prefix); };
  if (const auto own = std::find_if(tensors_.begin(), tensors_.end(), wanted);
      !prefix.empty() && own != tensors_.end()) {
    base::bad_input(folder_.string(), "has the tensor {} itself; nothing named {}* can be taken from {}", own->name,
                    prefix, other.folder_.string());
  }
  std::vector<uint32_t> place(other.shards_.size(), UINT32_MAX);
  for (Tensor& tensor : other.tensors_) {
    if (!wanted(tensor)) continue;
    uint32_t& shard = place[tensor.shard];
    if (shard == UINT32_MAX) {
      shard = static_cast<uint32_t>(shards_.size());
      shards_.push_back(std::move(other.shards_[tensor.shard]));
      shards_.back().adopted_as = as;
      reads_.push_back(std::move(other.reads_[tensor.shard]));
    }
    tensor.shard = shard;
    tensors_.push_back(std::move(tensor));
  }
  if (!std::any_of(tensors_.begin(), tensors_.end(), wanted)) {
    base::bad_input(other.folder_.string(), "has no tensors named {}*", prefix);
  }
  index_names();
}

void Checkpoint::index_names() {
  by_name_.clear();  // its keys point into the tensors
  by_name_.reserve(tensors_.size());
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const auto [other, fresh] = by_name_.emplace(tensors_[i].name, i);
    if (fresh) continue;
    base::bad_input(shards_[tensors_[i].shard].path.string(), "holds tensor {}, which is in {} too", tensors_[i].name,
                    shards_[tensors_[other->second].shard].path.filename().string());
  }
}

void Checkpoint::read_config() {
  const fs::path path = folder_ / "config.json";
  if (!is_there(path)) base::bad_input(path.string(), "is missing");
  config_ = base::parse_json(base::read_text(path, kMaxConfigBytes), path.string());
  if (!config_.is_object()) base::bad_input(path.string(), "is not a JSON object");
  quantization_ = base::json_member(config_, "quantization_config");
  const fs::path side = folder_ / "hf_quant_config.json";
  if (!quantization_.is_null() || !is_there(side)) return;
  const base::Json text = base::parse_json(base::read_text(side, kMaxConfigBytes), side.string());
  quantization_ = base::json_member(text, "quantization");
  if (!quantization_.is_object()) base::bad_input(side.string(), "lacks the object \"quantization\"");
}

Checkpoint Checkpoint::generated(const std::string& label, base::Json config, std::vector<Tensor> tensors, Read read) {
  uint64_t offset = 0;
  for (Tensor& tensor : tensors) {
    tensor.shard = 0;
    tensor.offset = offset;
    offset += tensor.bytes;
  }
  return view(label, std::move(config), {{.path = label, .bytes = offset, .data_offset = 0, .modified = {}}},
              std::move(tensors), read);
}

Checkpoint Checkpoint::view(const fs::path& folder, base::Json config, std::vector<Shard> shards,
                            std::vector<Tensor> tensors, const Read& read) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  checkpoint.config_ = std::move(config);
  checkpoint.quantization_ = base::json_member(checkpoint.config_, "quantization_config");
  checkpoint.shards_ = std::move(shards);
  checkpoint.reads_.assign(checkpoint.shards_.size(), read);
  checkpoint.tensors_ = std::move(tensors);
  checkpoint.index_names();
  return checkpoint;
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const Tensor& Checkpoint::at(std::string_view name) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) base::bad_input(folder_.string(), "lacks the tensor {}", name);
  return *tensor;
}

void Checkpoint::read(const Tensor& tensor, uint64_t offset, std::span<std::byte> out) const {
  if (offset > tensor.bytes || out.size() > tensor.bytes - offset) {
    base::internal_error(shards_[tensor.shard].path.string(),
                         "bytes {} to {} were to be read of tensor {}, which has {}", offset, offset + out.size(),
                         tensor.name, tensor.bytes);
  }
  reads_[tensor.shard](tensor, offset, out);
}

std::vector<std::byte> Checkpoint::read(const Tensor& tensor) const {
  std::vector<std::byte> out(tensor.bytes);
  read(tensor, 0, out);
  return out;
}

}  // namespace tandem::checkpoint
