#include "synth/write.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/units.h"
#include "checkpoint/safetensors_writer.h"
#include "synth/tokenizer.h"

namespace tandem::synth {

namespace {

namespace fs = std::filesystem;
using checkpoint::TensorSpec;

// Of a tensor in a header and in the index, with its name; for the check of the disk.
constexpr uint64_t kBytesOfEntry = 400;

// The ends of the shards, as indices of tensors.
std::vector<size_t> cut(std::span<const TensorSpec> tensors, uint64_t total, uint64_t shard_bytes) {
  const uint64_t least = std::max<uint64_t>(std::min(shard_bytes, (total + 1) / 2), 1);
  std::vector<size_t> ends;
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    bytes += tensors[i].bytes();
    if (bytes < least && i + 1 < tensors.size()) continue;
    ends.push_back(i + 1);
    bytes = 0;
  }
  return ends;
}

std::string shard_name(size_t index, size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

std::string index_json(std::span<const TensorSpec> tensors, const std::vector<size_t>& ends, uint64_t bytes) {
  std::string text = fmt::format(R"({{"metadata":{{"total_size":{}}},"weight_map":{{)", bytes);
  size_t shard = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    while (i >= ends[shard]) ++shard;
    text += fmt::format(R"({}"{}":"{}")", i == 0 ? "" : ",", tensors[i].name, shard_name(shard, ends.size()));
  }
  return text + "}}\n";
}

void require_room(const fs::path& out, uint64_t bytes) {
  const uint64_t room = base::free_disk_bytes(out);
  if (bytes <= room) return;
  base::unavailable(out.string(), "needs {}, the disk has {} left", base::format_bytes(bytes),
                    base::format_bytes(room));
}

// A folder that is gone unless it was kept.
class PartialFolder {
 public:
  explicit PartialFolder(const fs::path& out) : path_(out.string() + ".partial") {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~PartialFolder() {
    if (kept_) return;
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const fs::path& path() const { return path_; }
  void become(const fs::path& out) {
    fs::remove_all(out);
    fs::rename(path_, out);
    kept_ = true;
  }

 private:
  fs::path path_;
  bool kept_ = false;
};

// Also refuses to replace what no checkpoint is: a mistyped name must not cost a folder.
void require_place(const fs::path& out, bool force) {
  if (!fs::exists(out)) return;
  if (!force) base::bad_input(out.string(), "is already there (--force replaces it)");
  if (!fs::is_directory(out) || !fs::exists(out / "config.json")) {
    base::bad_input(out.string(), "is no checkpoint, it is not replaced");
  }
}

void write_shards(const Model& model, const std::vector<size_t>& ends, const fs::path& folder,
                  const WriteOptions& options) {
  base::Progress progress("writing", model.bytes(), base::ProgressUnit::kBytes, options.quiet);
  const auto tensors = model.tensors();
  for (size_t shard = 0; shard < ends.size(); ++shard) {
    const size_t first = shard == 0 ? 0 : ends[shard - 1];
    const auto fill = [&](size_t tensor, uint64_t offset, std::span<std::byte> out) {
      if (options.stop && options.stop()) throw base::Error(base::ErrorKind::kCancelled, "", "interrupted");
      model.make(first + tensor, offset, out);
      progress.add(out.size());
    };
    checkpoint::stream_safetensors(folder / shard_name(shard, ends.size()), tensors.subspan(first, ends[shard] - first),
                                   fill, {{"format", "pt"}});
  }
}

}  // namespace

WriteResult write_checkpoint(const Model& model, const fs::path& given, const WriteOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const fs::path out = given.filename().empty() ? given.parent_path() : given;
  require_place(out, options.force);
  const int64_t vocab = base::json_int(model.config().at("text_config"), "vocab_size", "config.json");
  const std::string tokenizer = tokenizer_json(vocab);
  const auto tensors = model.tensors();
  require_room(out, model.bytes() + tensors.size() * kBytesOfEntry + tokenizer.size() + (uint64_t{1} << 20));
  const std::vector<size_t> ends = cut(tensors, model.bytes(), options.shard_bytes);
  try {
    PartialFolder folder(out);
    base::write_text(folder.path() / "config.json", model.config().dump(2) + "\n");
    base::write_text(folder.path() / "tokenizer.json", tokenizer);
    base::write_text(folder.path() / "generation_config.json", generation_config_json(vocab));
    write_shards(model, ends, folder.path(), options);
    base::write_text(folder.path() / "model.safetensors.index.json", index_json(tensors, ends, model.bytes()));
    folder.become(out);
  } catch (const fs::filesystem_error& error) {
    base::bad_input(out.string(), "{}", error.code().message());
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {out, tensors.size(), ends.size(), model.bytes(), seconds};
}

}  // namespace tandem::synth
