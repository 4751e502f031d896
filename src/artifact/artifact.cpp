#include "artifact/artifact.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/stat.h>

#include "artifact/directory.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/units.h"

namespace tandem::artifact {

using base::bad_input;

namespace {

// The largest published tokenizer.json is under 32 MiB.
constexpr uint64_t kLargestText = uint64_t{256} << 20;

// The chat template of a tokenizer_config.json: a string, or a list of {name, template}, of which "default" counts.
std::string template_of_tokenizer_config(const base::Json& config) {
  const base::Json& found = base::json_member(config, "chat_template");
  if (found.is_string()) return found.get<std::string>();
  if (!found.is_array()) return {};
  for (const base::Json& entry : found) {
    const base::Json& text = base::json_member(entry, "template");
    if (base::json_member(entry, "name") == base::Json("default") && text.is_string()) return text.get<std::string>();
  }
  return {};
}

}  // namespace

Artifact Artifact::open(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) bad_input(folder.string(), "is not a folder; an artifact is one");
  const std::filesystem::path file = folder / kDirectoryFile;
  if (!std::filesystem::exists(file)) {
    const bool checkpoint = std::filesystem::exists(folder / "config.json");
    bad_input(folder.string(), "is not a Tandem artifact: it has no {}{}", kDirectoryFile,
              checkpoint ? " (a checkpoint becomes one with: tandem convert)" : "");
  }
  Directory directory = parse_directory(base::read_text(file, kLargestDirectory), file.string());
  Artifact artifact;
  artifact.folder_ = folder;
  artifact.format_version_ = directory.format_version;
  artifact.objects_ = std::move(directory.objects);
  artifact.provenance_ = std::move(directory.provenance);
  std::sort(artifact.objects_.begin(), artifact.objects_.end(), [](const Object& a, const Object& b) {
    return std::tie(a.part, a.offset, a.bytes) < std::tie(b.part, b.offset, b.bytes);
  });
  artifact.index_names();
  artifact.open_parts(directory.part_bytes);
  artifact.read_texts();
  return artifact;
}

Artifact Artifact::generated(const std::string& label, std::vector<Object> objects, std::vector<base::File> parts,
                             Read read) {
  Artifact artifact;
  artifact.folder_ = label;
  artifact.objects_ = std::move(objects);
  for (base::File& file : parts) {
    const uint64_t bytes = file.size();
    artifact.parts_.push_back({.file = std::move(file), .state = {.bytes = bytes}});
  }
  artifact.generate_ = std::move(read);
  artifact.index_names();
  artifact.read_texts();
  return artifact;
}

void Artifact::index_names() {
  for (uint32_t i = 0; i < objects_.size(); ++i) by_name_.emplace(objects_[i].name, i);
}

Artifact::FileState Artifact::state_of(const std::filesystem::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) bad_input(path.string(), "cannot stat: {}", std::strerror(errno));
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .bytes = static_cast<uint64_t>(status.st_size),
          .changed_ns = static_cast<int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec};
}

void Artifact::open_parts(const std::vector<uint64_t>& bytes) {
  for (uint32_t i = 0; i < bytes.size(); ++i) {
    const std::filesystem::path path = folder_ / part_name(i);
    if (!std::filesystem::exists(path)) bad_input(path.string(), "is missing; the artifact has {} parts", bytes.size());
    Part part{.file = base::File::open_read(path), .state = state_of(path)};
    if (part.state.bytes != bytes[i]) {
      bad_input(path.string(), "has {} bytes where the directory says {}", part.state.bytes, bytes[i]);
    }
    parts_.push_back(std::move(part));
  }
}

void Artifact::read_texts() {
  for (const Object& object : objects_) {
    if (object.encoding != Encoding::kText) continue;
    if (object.bytes > kLargestText) {
      bad_input(folder_.string(), "the text {} has {}, more than the {} allowed", object.name,
                base::format_bytes(object.bytes), base::format_bytes(kLargestText));
    }
    const std::vector<std::byte> bytes = read(object);
    texts_.emplace(object.name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  const auto parse = [&](const char* name) {
    const auto found = texts_.find(name);
    return found == texts_.end() ? base::Json() : base::parse_json(found->second, (folder_ / name).string());
  };
  config_ = parse("config.json");
  if (!config_.is_object()) bad_input(folder_.string(), "holds no config.json");
  generation_config_ = parse("generation_config.json");
  if (const auto found = texts_.find("chat_template.jinja"); found != texts_.end()) {
    chat_template_ = found->second;
  } else {
    chat_template_ = template_of_tokenizer_config(parse("tokenizer_config.json"));
  }
}

const Object* Artifact::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &objects_[found->second];
}

const Object& Artifact::at(std::string_view name) const {
  const Object* object = find(name);
  if (object == nullptr) bad_input(folder_.string(), "has no object {}", name);
  return *object;
}

void Artifact::read(const Object& object, uint64_t offset, std::span<std::byte> out) const {
  if (offset > object.bytes || out.size() > object.bytes - offset) {
    bad_input(folder_.string(), "bytes {} to {} of {} were to be read, which has {}", offset, offset + out.size(),
              object.name, object.bytes);
  }
  if (generate_) return generate_(object, offset, out);
  parts_[object.part].file.read_at(object.offset + offset, out);
}

std::vector<std::byte> Artifact::read(const Object& object) const {
  std::vector<std::byte> bytes(object.bytes);
  read(object, 0, bytes);
  if (generate_) return bytes;
  const std::string checksum = base::xxh3_128_hex(bytes);
  if (checksum != object.xxh3_128) {
    bad_input(parts_[object.part].file.path().string(),
              "is corrupt: the checksum of {} is {} where the directory says {}", object.name, checksum,
              object.xxh3_128);
  }
  return bytes;
}

void Artifact::check_unchanged() const {
  if (generate_) return;
  for (const Part& part : parts_) {
    const FileState now = state_of(part.file.path());
    if (now != part.state) {
      bad_input(part.file.path().string(), "was changed while it was in use: {} bytes when opened, {} now{}",
                part.state.bytes, now.bytes, now.inode != part.state.inode ? ", and another file" : "");
    }
  }
}

const std::string& Artifact::tokenizer_json() const {
  static const std::string kNone;
  const auto found = texts_.find("tokenizer.json");
  return found == texts_.end() ? kNone : found->second;
}

}  // namespace tandem::artifact
