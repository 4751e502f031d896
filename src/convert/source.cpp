#include "convert/source.h"

#include <algorithm>
#include <array>

#include "artifact/writer.h"
#include "base/error.h"
#include "base/file.h"

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
  return extras;
}

void adopt_extras(checkpoint::Checkpoint& checkpoint, const SourceFolders& folders) {
  for (const SourceFolders::Extra& extra : folders.extras()) {
    checkpoint.adopt(checkpoint::Checkpoint::open(extra.folder), extra.prefix, extra.name);
  }
}

bool has_stand_ins(const fs::path& partial) {
  std::error_code error;
  return fs::exists(partial / kStandIns, error) && !fs::is_empty(partial / kStandIns, error);
}

checkpoint::Checkpoint open_source(const fs::path& folder, const fs::path& partial) {
  if (!fs::is_directory(folder)) bad_input(folder.string(), "is not a folder; a checkpoint to convert is one");
  if (!has_stand_ins(partial)) return checkpoint::Checkpoint::open(folder);
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
