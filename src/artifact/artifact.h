// A Tandem artifact: a folder `NAME.tandem` with everything that is needed to serve one model, in the layout that
// kernels read. docs/artifact.md describes every byte.
//
//   tandem.json      the directory: one header line with the format version and the directory's length and checksum,
//                    then the directory itself (objects, parts, provenance) as JSON
//   part-00000.bin…  the objects' bytes, each object at a multiple of 4096
//
// The source's codes and scales are kept bit for bit; any reordering is a documented, invertible permutation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "artifact/object.h"
#include "base/file.h"
#include "base/json.h"

namespace tandem::artifact {

// An opened artifact. Immutable; read() may be called from several threads.
class Artifact {
 public:
  // Checks the directory (artifact/directory.h), the sizes of the parts and the checksums of the texts. Weights are
  // not read. Throws base::Error{kBadInput} with the path and the figures.
  static Artifact open(const std::filesystem::path& folder);

  // An artifact without a folder: objects whose bytes `read` makes when they are asked for, from any thread. Their
  // checksums are not compared. Rows of n-gram tables are read from `parts`, as the objects' places say. `label` stands
  // for the folder in messages.
  using Read = std::function<void(const Object& object, uint64_t offset, std::span<std::byte> out)>;
  static Artifact generated(const std::string& label, std::vector<Object> objects, std::vector<base::File> parts,
                            Read read);

  const std::filesystem::path& folder() const { return folder_; }
  bool generated() const { return generate_ != nullptr; }
  int format_version() const { return format_version_; }
  const std::vector<Object>& objects() const { return objects_; }  // in the order of their places
  const Object* find(std::string_view name) const;
  const Object& at(std::string_view name) const;  // throws, naming the object and the artifact

  // Bytes of an object, by offset from its start. Throws where they leave the object, or where the part is no longer
  // as long as it was.
  void read(const Object& object, uint64_t offset, std::span<std::byte> out) const;
  // The whole object; throws where its checksum differs.
  std::vector<std::byte> read(const Object& object) const;
  // The file of a part, for readers with their own I/O.
  const base::File& part(uint32_t index) const { return parts_[index].file; }
  size_t parts() const { return parts_.size(); }
  // Throws where a part was changed or replaced since the artifact was opened (its size, time of change or place on
  // disk). A loader calls this after its last read.
  void check_unchanged() const;

  // The texts that the checkpoint came with, by file name.
  const std::map<std::string, std::string, std::less<>>& texts() const { return texts_; }
  const base::Json& config() const { return config_; }                        // the checkpoint's config.json
  const base::Json& generation_config() const { return generation_config_; }  // generation_config.json, or null
  const std::string& tokenizer_json() const;                                  // empty where the source had none
  const std::string& chat_template() const { return chat_template_; }  // Jinja text; empty where the source had none
  // Where the weights came from: docs/artifact.md, "Provenance".
  const base::Json& provenance() const { return provenance_; }

 private:
  struct FileState {
    uint64_t device = 0, inode = 0, bytes = 0;
    int64_t changed_ns = 0;
    bool operator==(const FileState&) const = default;
  };
  struct Part {
    base::File file;
    FileState state;
  };
  static FileState state_of(const std::filesystem::path& path);
  void open_parts(const std::vector<uint64_t>& bytes);
  void read_texts();
  void index_names();

  std::filesystem::path folder_;
  int format_version_ = 0;
  std::vector<Object> objects_;
  std::vector<Part> parts_;
  std::unordered_map<std::string_view, uint32_t> by_name_;  // keys point into objects_
  std::map<std::string, std::string, std::less<>> texts_;
  base::Json config_, generation_config_, provenance_;
  std::string chat_template_;
  Read generate_;  // empty where there are files
};

}  // namespace tandem::artifact
