// The checkpoint folder that a conversion reads: its weights, its texts, and what is known of where it came from.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "convert/recipe.h"

namespace tandem::convert {

// The texts that an artifact takes over where the folder has them, in a fixed order: configuration, tokenizer, chat
// template, image preprocessing, licences and notices. Throws base::Error{kBadInput} where config.json is missing or a
// text is larger than any published one.
std::vector<Text> read_texts(const std::filesystem::path& folder);
bool is_licence(const std::string& name);

// The repository and revision that a folder was downloaded from, where its path or its download records tell.
struct Origin {
  std::string repository;  // "ORG/NAME", or empty
  std::string revision;    // a commit, or empty
};
Origin find_origin(const std::filesystem::path& folder);

// The SHA-256 that the download recorded for a file, where it did.
std::optional<std::string> recorded_sha256(const std::filesystem::path& folder, const std::string& file);

// Where a conversion's tensors come from.
struct SourceFolders {
  SourceFolders(std::filesystem::path folder) : base(std::move(folder)) {}  // NOLINT(*-explicit-*): most have one
  SourceFolders(const char* folder) : base(folder) {}                       // NOLINT(*-explicit-*)

  std::filesystem::path base;                   // a folder, or a GGUF file
  std::filesystem::path mtp_from, vision_from;  // the draft head and the vision tower of other checkpoints, or empty
  std::filesystem::path experts_from;           // a GGUF file with the routed experts, or empty
  std::filesystem::path texts_from;             // the folder of config and tokenizer where the base is a GGUF file

  bool is_gguf() const { return base.extension() == ".gguf"; }
  // The folder of the texts. Throws base::Error{kBadInput} where it is needed and not given, or given and not needed.
  const std::filesystem::path& texts() const;

  // What stands beside `base`, under the name that its shards and the provenance bear.
  struct Extra {
    const char* name;
    const char* prefix;  // of the tensors that are taken as they are; null where it is not by name
    std::filesystem::path folder;
  };
  std::vector<Extra> extras() const;
};
// The base with all that `folders` has beside it; where it is a folder, with the stand-ins of `partial` (below).
checkpoint::Checkpoint open_all(const SourceFolders& folders, const std::filesystem::path& partial);

// ---- Consuming ---------------------------------------------------------------------------------------------------
// A shard whose tensors are all in the artifact may be deleted while the conversion goes on. A stand-in of the same
// size and time with the shard's header, and no data, takes its place in the conversion's own folder, so that an
// interrupted conversion can still plan all of its objects.

// Opens `folder`, with the stand-ins of `partial` where there are any.
checkpoint::Checkpoint open_source(const std::filesystem::path& folder, const std::filesystem::path& partial);
bool has_stand_ins(const std::filesystem::path& partial);
// Writes the stand-in of a shard and waits until the disk has it.
void make_stand_in(const checkpoint::Shard& shard, const std::filesystem::path& partial);
// Whether deleting the file gives its bytes back: not where another hard link holds them.
bool frees_disk(const std::filesystem::path& path);
// Deletes a file, and where it is a link to a file also that file; its bytes are free at once.
void delete_source(const std::filesystem::path& path);

}  // namespace tandem::convert
