// A small artifact with every kind of object, written through the writer, and ways to damage it.
#pragma once

#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <vector>

#include "artifact/directory.h"
#include "artifact/writer.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace tandem::testing {

inline constexpr const char* kConfig = R"({"model_type":"qwen4_exp"})";

inline artifact::Object object(std::string name, artifact::Encoding encoding, std::vector<int64_t> shape) {
  artifact::Object object;
  object.name = std::move(name);
  object.encoding = encoding;
  object.shape = std::move(shape);
  const artifact::ObjectSize size = artifact::object_size(encoding, object.shape).value();
  object.bytes = size.bytes;
  object.record_bytes = size.record_bytes;
  return object;
}

inline std::vector<artifact::Object> small_objects(uint64_t part_bytes) {
  using artifact::Encoding;
  std::vector<artifact::Object> objects = {
      object("config.json", Encoding::kText, {static_cast<int64_t>(std::string(kConfig).size())}),
      object("a.weight", Encoding::kBF16, {3, 5}),
      object("layers.0.mlp.experts", Encoding::kExpertsNvfp4, {2, 64, 128}),
      object("layers.0.mlp.experts.scalars", Encoding::kF32, {2, 6}),
      object("ngram_embedding", Encoding::kNgramF8E4M3, {60, 160}),
      object("empty", Encoding::kF32, {0, 4}),
      object("scalar", Encoding::kI64, {}),
  };
  artifact::place_objects(objects, part_bytes);
  return objects;
}

inline std::vector<std::byte> small_content(const artifact::Object& object) {
  std::vector<std::byte> bytes(object.bytes);
  if (object.name == "config.json") {
    std::memcpy(bytes.data(), kConfig, bytes.size());
  } else {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + object.name.size());
  }
  return bytes;
}

inline artifact::Journal new_journal(const std::filesystem::path& partial) {
  std::filesystem::create_directories(partial);
  artifact::Journal journal = artifact::Journal::open(partial);
  if (journal.entries().empty()) journal.append({{"conversion", "test"}}, true);
  return journal;
}

inline void write_next(artifact::Writer& writer) {
  const artifact::Object& next = writer.objects()[writer.completed()];
  if (next.bytes == 0) {
    writer.skip_empty();
  } else {
    writer.append(small_content(next));
  }
}

// Writes the artifact `out`.
inline void write_small(const std::filesystem::path& out, uint64_t part_bytes = 1 << 20) {
  const std::filesystem::path partial = artifact::partial_folder(out);
  artifact::Writer writer(partial, small_objects(part_bytes), new_journal(partial));
  while (writer.completed() < writer.objects().size()) write_next(writer);
  writer.finish(out, {{"tool", "test"}});
}

// Lets `edit` change the directory and writes it back under a right header.
inline void edit_directory(const std::filesystem::path& folder, const std::function<void(base::Json&)>& edit) {
  const std::filesystem::path file = folder / artifact::kDirectoryFile;
  const std::string text = base::read_text(file, 1 << 20);
  base::Json directory = base::parse_json(std::string_view(text).substr(text.find('\n') + 1), "test");
  edit(directory);
  const std::string body = directory.dump();
  base::Json header = {{"format", "tandem"},
                       {"version", 1},
                       {"directory_bytes", body.size()},
                       {"directory_xxh3_128", base::xxh3_128_hex(std::as_bytes(std::span(body)))}};
  base::write_text(file, header.dump() + "\n" + body);
}

// The message of the base::Error that `action` throws, "" where it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace tandem::testing
