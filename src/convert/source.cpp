#include "convert/source.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "artifact/writer.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "convert/gguf_view.h"

namespace tandem::convert {

namespace fs = std::filesystem;
using base::bad_input;

namespace {

constexpr uint64_t kLargestText = uint64_t{128} << 20;
constexpr uint64_t kLargestRecord = 4096;

constexpr std::array kTexts = {"config.json",
                               "generation_config.json",
                               "hf_quant_config.json",
                               "tokenizer.json",
                               "tokenizer_config.json",
                               "special_tokens_map.json",
                               "chat_template.jinja",
                               "preprocessor_config.json",
                               "video_preprocessor_config.json",
                               "README.md"};
constexpr std::array kLicences = {"LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE",
                                  "COPYING", "NOTICE",      "NOTICE.txt", "NOTICE.md"};

constexpr const char* kStandIns = "consumed";
constexpr const char* kView = "source";

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The lines of the record that the Hugging Face client leaves for a file that it downloaded into a plain folder: the
// commit, the file's etag, a time.
std::vector<std::string> download_record(const fs::path& folder, const std::string& file) {
  const fs::path path = folder / ".cache" / "huggingface" / "download" / (file + ".metadata");
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kLargestRecord || error) return {};
  const std::string text = base::read_text(path, kLargestRecord);
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// models--ORG--NAME/snapshots/REVISION, the client's cache.
Origin origin_of_cache(const fs::path& folder) {
  static constexpr std::string_view kPrefix = "models--";
  fs::path path = fs::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string revision = path.filename().string();
  const std::string repository = path.parent_path().parent_path().filename().string();
  if (path.parent_path().filename() != "snapshots" || !repository.starts_with(kPrefix)) return {};
  std::string name = repository.substr(kPrefix.size());
  if (const size_t dash = name.find("--"); dash != std::string::npos) {
    name = fmt::format("{}/{}", name.substr(0, dash), name.substr(dash + 2));
  }
  return {.repository = name, .revision = is_hex(revision, 40) ? revision : ""};
}

// The name of the module of routed experts that a tensor belongs to, or nothing.
std::string_view experts_module(std::string_view tensor) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const size_t at = tensor.find(kExperts);
  return at == std::string_view::npos ? std::string_view() : tensor.substr(0, at + kExperts.size() - 1);
}

// The layers whose experts the file has lose their own.
void replace_experts(checkpoint::Checkpoint& checkpoint, const fs::path& gguf) {
  checkpoint::Checkpoint experts = view_gguf_experts(gguf);
  std::unordered_set<std::string> modules;
  for (const checkpoint::Tensor& tensor : experts.tensors()) modules.emplace(experts_module(tensor.name));
  std::unordered_set<std::string> replaced;
  checkpoint.remove([&](std::string_view name) {
    const auto module = modules.find(std::string(experts_module(name)));
    if (module == modules.end()) return false;
    replaced.insert(*module);
    return true;
  });
  for (const std::string& module : modules) {
    if (!replaced.contains(module)) {
      bad_input(gguf.string(), "has experts for {}, of which {} has none", module, checkpoint.folder().string());
    }
  }
  checkpoint.adopt(std::move(experts), "", "experts-from");
}

}  // namespace

std::vector<Text> read_texts(const fs::path& folder) {
  std::vector<Text> texts;
  const auto add = [&](const char* name) {
    if (fs::exists(folder / name)) texts.push_back({name, base::read_text(folder / name, kLargestText)});
  };
  std::ranges::for_each(kTexts, add);
  std::ranges::for_each(kLicences, add);
  if (texts.empty() || texts[0].name != kTexts[0]) bad_input(folder.string(), "has no config.json");
  return texts;
}

bool is_licence(const std::string& name) {
  return std::ranges::find(kLicences, name) != kLicences.end();
}

Origin find_origin(const fs::path& folder) {
  Origin origin = origin_of_cache(folder);
  if (!origin.revision.empty()) return origin;
  // Every file of a download records its commit; files of different commits have no common revision.
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::vector<std::string> record = download_record(folder, entry.path().filename().string());
    if (record.empty() || !is_hex(record[0], 40)) continue;
    if (!origin.revision.empty() && origin.revision != record[0])
      return {.repository = origin.repository, .revision = ""};
    origin.revision = record[0];
  }
  return origin;
}

std::optional<std::string> recorded_sha256(const fs::path& folder, const std::string& file) {
  const std::vector<std::string> record = download_record(folder, file);
  if (record.size() >= 2 && is_hex(record[1], 64)) return record[1];
  // In the client's cache a file is a link to a blob that is named by its checksum.
  std::error_code error;
  std::string blob = fs::read_symlink(folder / file, error).filename().string();
  if (!error && is_hex(blob, 64)) return blob;
  return std::nullopt;
}

std::vector<SourceFolders::Extra> SourceFolders::extras() const {
  std::vector<Extra> extras;
  if (!mtp_from.empty()) extras.push_back({"mtp-from", "mtp.", mtp_from});
  if (!vision_from.empty()) extras.push_back({"vision-from", "model.visual.", vision_from});
  if (!experts_from.empty()) extras.push_back({"experts-from", nullptr, experts_from.parent_path()});
  if (!texts_from.empty()) extras.push_back({"texts-from", nullptr, texts_from});
  return extras;
}

const fs::path& SourceFolders::texts() const {
  if (!is_gguf()) {
    if (!texts_from.empty()) bad_input("--texts-from", "is for GGUF files; {} has texts of its own", base.string());
    return base;
  }
  if (texts_from.empty()) {
    bad_input(base.string(),
              "has no config.json and no tokenizer.json beside the weights: --texts-from must name the "
              "folder of the published model's (config.json, tokenizer.json and so on; its weights are not needed)");
  }
  return texts_from;
}

checkpoint::Checkpoint open_all(const SourceFolders& folders, const fs::path& partial) {
  const fs::path config = folders.texts() / "config.json";
  auto checkpoint =
      folders.is_gguf()
          ? view_gguf(folders.base, base::parse_json(base::read_text(config, kLargestText), config.string()))
          : open_source(folders.base, partial);
  if (!folders.experts_from.empty()) replace_experts(checkpoint, folders.experts_from);
  for (const SourceFolders::Extra& extra : folders.extras()) {
    if (extra.prefix == nullptr) continue;
    checkpoint.adopt(checkpoint::Checkpoint::open(extra.folder), extra.prefix, extra.name);
  }
  return checkpoint;
}

bool has_stand_ins(const fs::path& partial) {
  std::error_code error;
  return fs::exists(partial / kStandIns, error) && !fs::is_empty(partial / kStandIns, error);
}

checkpoint::Checkpoint open_source(const fs::path& folder, const fs::path& partial) {
  if (!fs::is_directory(folder)) bad_input(folder.string(), "is not a folder; a checkpoint to convert is one");
  if (partial.empty() || !has_stand_ins(partial)) return checkpoint::Checkpoint::open(folder);
  const fs::path view = partial / kView;
  fs::remove_all(view);
  fs::create_directories(view);
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::absolute(folder))) {
    const fs::path stand_in = partial / kStandIns / entry.path().filename();
    if (entry.is_regular_file() && !fs::exists(stand_in)) {
      fs::create_symlink(entry.path(), view / entry.path().filename());
    }
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::absolute(partial / kStandIns))) {
    fs::create_symlink(entry.path(), view / entry.path().filename());
  }
  return checkpoint::Checkpoint::open(view);
}

void make_stand_in(const checkpoint::Shard& shard, const fs::path& partial) {
  const fs::path folder = partial / kStandIns;
  fs::create_directories(folder);
  const fs::path path = folder / shard.path.filename();
  fs::path unfinished = partial / shard.path.filename();
  unfinished += ".stand-in";
  std::vector<std::byte> header(shard.data_offset);
  base::File::open_read(shard.path).read_at(0, header);
  {
    base::File file = base::File::open_write(unfinished);
    file.truncate(0);
    file.write_at(0, header);
    file.truncate(shard.bytes);
    file.sync();
  }
  fs::last_write_time(unfinished, fs::last_write_time(shard.path));
  fs::rename(unfinished, path);
  artifact::sync_folder(folder);
  artifact::sync_folder(partial);
}

bool frees_disk(const fs::path& path) {
  std::error_code error;
  return fs::hard_link_count(fs::canonical(path, error), error) == 1 && !error;
}

void delete_source(const fs::path& path) {
  const fs::path file = fs::canonical(path);
  // The conversion has the file open, which keeps its bytes on disk until they are cut off. With a second hard link
  // they are somebody else's too, and stay.
  if (frees_disk(file)) fs::resize_file(file, 0);
  if (file != path) fs::remove(file);
  fs::remove(path);
}

}  // namespace tandem::convert
