// A Tandem artifact: a folder `NAME.tandem` with everything that is needed to serve one model, in the layout that
// kernels read. docs/artifact.md describes every byte.
//
//   tandem.json      the directory: one header line with the format version and the directory's length and checksum,
//                    then the directory itself (objects, texts, provenance) as JSON
//   part-00000.bin…  the objects' bytes, each object at a multiple of 4096
//
// The source's codes and scales are kept bit for bit; any reordering is a documented, invertible permutation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace tandem::artifact {

inline constexpr uint64_t kAlignment = 4096;

// What the bytes of an object are.
enum class Encoding : uint8_t {
  kBF16,  // plain, C order, as are the next four
  kF32,
  kF16,
  kI64,
  kF8E4M3,
  kU8,
  // One record an expert, records at a fixed stride; gate and up are [inner, hidden], down is [hidden, inner].
  kExpertsBF16,      // gate, up, down row-major
  kExpertsNvfp4,     // gate, up, down in units of 16 rows x 64 inputs (numeric/nvfp4.h); scalars in NAME.scalars
  kExpertsFp8Block,  // E4M3 codes of gate, up, down row-major, then their BF16 scale grids of 128 x 128 blocks
  // Rows of the n-gram table, as many whole rows to a 4 KiB block as fit.
  kNgramF8E4M3,
  kNgramBF16,
};

std::string_view encoding_name(Encoding encoding);

struct Object {
  std::string name;  // the checkpoint's tensor name; for experts and n-gram rows the name of the module
  Encoding encoding = Encoding::kBF16;
  std::vector<int64_t> shape;  // experts: [experts, inner, hidden]; n-gram rows: [rows, width]; else the tensor's
  uint32_t part = 0;
  uint64_t offset = 0;        // within the part, a multiple of kAlignment
  uint64_t bytes = 0;         // of the object, without the padding to the next
  uint64_t record_bytes = 0;  // experts: the stride of a record, a multiple of kAlignment; else 0
  std::string xxh3_128;       // of the object's bytes
};

// An opened artifact. Immutable; read() may be called from several threads.
class Artifact {
 public:
  // Checks the directory's checksum, that objects lie inside their parts, are aligned, do not overlap and have the
  // bytes that their shape asks for. Throws base::Error{kBadInput} with the path and the figures.
  static Artifact open(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  int format_version() const { return format_version_; }
  const std::vector<Object>& objects() const { return objects_; }
  const Object* find(std::string_view name) const;
  const Object& at(std::string_view name) const;  // throws, naming the object and the artifact

  // Bytes of an object, by offset from its start.
  void read(const Object& object, uint64_t offset, std::span<std::byte> out) const;
  std::vector<std::byte> read(const Object& object) const;
  // The file and position of an object, for readers with their own I/O.
  const base::File& part(uint32_t index) const { return parts_[index]; }

  const base::Json& config() const;             // the checkpoint's config.json
  const base::Json& generation_config() const;  // generation_config.json, or null
  const std::string& tokenizer_json() const;    // empty where the source had none
  const std::string& chat_template() const;     // Jinja text; empty where the source had none
  const base::Json& provenance() const;

 private:
  std::filesystem::path folder_;
  int format_version_ = 0;
  std::vector<Object> objects_;
  std::vector<base::File> parts_;
  std::unordered_map<std::string_view, uint32_t> by_name_;
  base::Json directory_;
  std::string tokenizer_json_;
  std::string chat_template_;
};

}  // namespace tandem::artifact
