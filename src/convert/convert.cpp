#include "convert/convert.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <sys/stat.h>

#include "artifact/directory.h"
#include "artifact/writer.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/units.h"
#include "base/version.h"
#include "checkpoint/recognise.h"
#include "convert/disk_need.h"
#include "convert/hasher.h"
#include "convert/provenance.h"
#include "convert/recipe.h"
#include "convert/source.h"

namespace tandem::convert {

namespace fs = std::filesystem;
using base::bad_input;
using base::Json;

namespace {

// Everything that the artifact's bytes follow from, as one checksum.
std::string fingerprint(const checkpoint::Checkpoint& checkpoint, const Plans& plans, const Options& options,
                        const std::vector<Text>& texts) {
  base::Xxh3 hash;
  const auto add = [&](const auto&... fields) {
    const std::string text = fmt::format("{}\n", fmt::join(std::vector<std::string>{fmt::to_string(fields)...}, "\t"));
    hash.update(std::as_bytes(std::span(text)));
  };
  add(base::version(), dense_policy_name(options.choices.dense), mtp_experts_name(options.choices.mtp_experts),
      options.part_bytes);
  for (const Text& text : texts) add(text.name, text.content.size(), sha256_of(text.content));
  for (const checkpoint::Shard& shard : checkpoint.shards()) {
    add(shard.name(), shard.bytes, shard.data_offset, shard.modified.tv_sec, shard.modified.tv_nsec);
  }
  for (const auto& plan : plans) {
    const artifact::Object& object = plan->object();
    add(object.name, artifact::encoding_name(object.encoding), fmt::format("{}", fmt::join(object.shape, ",")),
        object.bytes);
    for (const checkpoint::Tensor* tensor : plan->tensors()) {
      add(tensor->name, checkpoint::dtype_name(tensor->dtype), tensor->shard, tensor->offset, tensor->bytes);
    }
  }
  return hash.hex();
}

uint64_t device_of(const fs::path& path) {
  fs::path probe = fs::absolute(path);
  while (!fs::exists(probe) && probe.has_relative_path()) probe = probe.parent_path();
  struct stat status{};
  return ::stat(probe.c_str(), &status) == 0 ? status.st_dev : 0;
}

class Conversion {
 public:
  Conversion(const SourceFolders& source, const fs::path& out, const Options& options)
      : folders_(source),
        source_(source.is_gguf() ? source.base.parent_path() : source.base),
        out_(out.has_filename() ? out : out.parent_path()),
        options_(options),
        partial_(artifact::partial_folder(out)),
        checkpoint_(open_all(source, partial_)),
        texts_(read_texts(source.texts())),
        recognised_(checkpoint::recognise(checkpoint_)),
        plans_(plan_published(checkpoint_, texts_, options.choices)),
        last_use_(last_uses(plans_, checkpoint_.shards().size())) {}

  Result run();

 private:
  Json head() const;
  Json choices() const;
  artifact::Journal open_journal();
  void read_journal(const artifact::Journal& journal);
  void check_disk(size_t done) const;
  void write_objects();
  void write_object(const ObjectPlan& plan);
  void keep_ready_hashes();
  void keep_hash(const checkpoint::Shard& shard, const std::string& sha256);
  void check_recorded(const checkpoint::Shard& shard, const std::string& sha256) const;
  void consume_finished();
  void consume(const checkpoint::Shard& shard);
  std::vector<SourceFile> source_files() const;
  Origin origin() const;
  [[noreturn]] void give_up(const base::Error& error);
  fs::path shard_in_source(const checkpoint::Shard& shard) const { return source_ / shard.path.filename(); }
  static std::string name_of(const checkpoint::Shard& shard) { return shard.name(); }

  SourceFolders folders_;
  fs::path source_, out_;
  Options options_;
  fs::path partial_;
  checkpoint::Checkpoint checkpoint_;
  std::vector<Text> texts_;
  checkpoint::Recognised recognised_;  // every tensor is there in its shape, and no other
  Plans plans_;
  std::vector<size_t> last_use_;
  std::string date_;
  std::map<std::string, std::string> sha256_;  // of the shards, by file name
  std::map<std::string, bool> consumed_;
  std::unique_ptr<artifact::Writer> writer_;
  std::unique_ptr<base::Progress> progress_;
  std::unique_ptr<FileHasher> hasher_;  // after progress_, which it calls
  std::vector<std::byte> buffer_;
};

Json Conversion::head() const {
  Json head;
  head["conversion"] = recipe_name(options_.choices);
  head["fingerprint"] = fingerprint(checkpoint_, plans_, options_, texts_);
  head["date"] = options_.date.empty() ? conversion_date() : options_.date;
  return head;
}

// The journal of the folder to write into: that of an earlier run of the same conversion, or a new one.
artifact::Journal Conversion::open_journal() {
  Json expected = head();
  if (fs::exists(partial_) && !fs::exists(partial_ / artifact::kJournalFile) && !fs::is_empty(partial_)) {
    bad_input(partial_.string(), "is in the way and is not a conversion that was interrupted; remove it");
  }
  fs::create_directories(partial_);
  artifact::Journal journal = artifact::Journal::open(partial_);
  if (!journal.entries().empty()) {
    const Json& found = journal.entries().front();
    if (base::json_member(found, "fingerprint") == expected["fingerprint"]) return journal;
    if (has_stand_ins(partial_)) {
      bad_input(partial_.string(),
                "holds a conversion of another state of {}, or with another part size, that has "
                "consumed shards already; go on with what it was started with, or remove it and get the source again",
                source_.string());
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(partial_)) {
      if (entry.path().filename() != artifact::kJournalFile) fs::remove_all(entry.path());
    }
    journal.clear();
  }
  journal.append(std::move(expected), true);
  artifact::sync_folder(partial_);
  return journal;
}

void Conversion::read_journal(const artifact::Journal& journal) {
  const std::string source = partial_.string();
  date_ = base::json_string(journal.entries().front(), "date", source);
  for (const Json& entry : journal.entries()) {
    if (entry.contains("sha256")) {
      sha256_[base::json_string(entry, "file", source)] = base::json_string(entry, "sha256", source);
    }
    if (entry.contains("consumed")) consumed_[base::json_string(entry, "consumed", source)] = true;
  }
}

void Conversion::check_disk(size_t done) const {
  const auto peak = [&](bool consume) {
    std::vector<uint64_t> freed;
    freed.reserve(checkpoint_.shards().size());
    for (const checkpoint::Shard& shard : checkpoint_.shards()) {
      const bool counts = consume && shard.adopted_as.empty() && !consumed_.contains(name_of(shard)) &&
                          frees_disk(shard.path) && device_of(shard.path) == device_of(out_);
      freed.push_back(counts ? shard.bytes : 0);
    }
    return peak_bytes(plans_, done, last_use_, freed);
  };
  const uint64_t free = options_.free_bytes ? options_.free_bytes(partial_) : base::free_disk_bytes(partial_);
  const uint64_t need = peak(options_.consume);
  if (need <= free) return;
  const uint64_t consuming = peak(true);
  base::unavailable(out_.string(), "needs {} of free disk ({} bytes), {} ({} bytes) are free{}",
                    base::format_bytes(need), need, base::format_bytes(free), free,
                    !options_.consume && consuming < need
                        ? fmt::format("; with --consume, which deletes the source as it goes, {} are enough",
                                      base::format_bytes(consuming))
                        : "");
}

Result Conversion::run() {
  const auto start = std::chrono::steady_clock::now();
  if (!fs::exists(partial_)) check_disk(0);
  artifact::Journal journal = open_journal();
  read_journal(journal);
  std::vector<artifact::Object> objects;
  objects.reserve(plans_.size());
  for (const auto& plan : plans_) objects.push_back(plan->object());
  artifact::place_objects(objects, options_.part_bytes);
  writer_ = std::make_unique<artifact::Writer>(partial_, std::move(objects), std::move(journal));
  Result result;
  result.artifact = out_;
  result.model = recognised_.text();
  result.objects = plans_.size();
  result.resumed_objects = writer_->completed();
  const std::vector<uint64_t> parts = artifact::part_sizes(writer_->objects());
  result.parts = parts.size();
  for (const uint64_t bytes : parts) result.bytes += bytes;
  check_disk(writer_->completed());
  try {
    write_objects();
    writer_->finish(out_, provenance_json(origin(), recipe_name(options_.choices), choices(), date_, source_files()));
  } catch (const base::Error& error) {
    give_up(error);
  }
  result.consumed_shards = consumed_.size();
  if (std::ranges::none_of(texts_, [](const Text& text) { return text.name == "tokenizer.json"; })) {
    result.warnings.push_back("the source has no tokenizer.json: the artifact takes token ids only");
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void Conversion::write_objects() {
  uint64_t left = 0;
  for (size_t i = writer_->completed(); i < plans_.size(); ++i) left += plans_[i]->object().bytes;
  std::vector<fs::path> to_hash;
  for (const checkpoint::Shard& shard : checkpoint_.shards()) {
    // Draft head and vision tower may come from one file.
    if (sha256_.contains(name_of(shard)) || std::ranges::find(to_hash, shard.path) != to_hash.end()) continue;
    to_hash.push_back(shard.path);
    left += shard.bytes;
  }
  progress_ = std::make_unique<base::Progress>("converting", left, base::ProgressUnit::kBytes, options_.quiet);
  hasher_ = std::make_unique<FileHasher>(to_hash, [this](uint64_t bytes) { progress_->add(bytes); });
  consume_finished();
  while (writer_->completed() < plans_.size()) {
    write_object(*plans_[writer_->completed()]);
    keep_ready_hashes();
    consume_finished();
  }
  for (const checkpoint::Shard& shard : checkpoint_.shards()) {
    if (!sha256_.contains(name_of(shard))) keep_hash(shard, hasher_->get(shard.path));
  }
  hasher_.reset();
  progress_.reset();
}

void Conversion::write_object(const ObjectPlan& plan) {
  if (plan.chunks() == 0) writer_->skip_empty();
  for (uint64_t chunk = 0; chunk < plan.chunks(); ++chunk) {
    buffer_.resize(plan.chunk_size(chunk));
    plan.make(checkpoint_, chunk, buffer_);
    writer_->append(buffer_);
    progress_->add(buffer_.size());
    if (options_.stop && options_.stop(writer_->completed())) {
      throw base::Error(base::ErrorKind::kCancelled, out_.string(), "the conversion was interrupted");
    }
  }
}

void Conversion::keep_ready_hashes() {
  for (const checkpoint::Shard& shard : checkpoint_.shards()) {
    if (!sha256_.contains(name_of(shard)) && hasher_->ready(shard.path)) keep_hash(shard, hasher_->get(shard.path));
  }
}

void Conversion::keep_hash(const checkpoint::Shard& shard, const std::string& sha256) {
  check_recorded(shard, sha256);
  Json entry;
  entry["file"] = name_of(shard);
  entry["sha256"] = sha256;
  writer_->journal().append(std::move(entry), false);
  sha256_[name_of(shard)] = sha256;
}

void Conversion::check_recorded(const checkpoint::Shard& shard, const std::string& sha256) const {
  const fs::path path = shard.adopted_as.empty() ? shard_in_source(shard) : shard.path;
  const std::optional<std::string> recorded = recorded_sha256(path.parent_path(), path.filename().string());
  if (recorded && *recorded != sha256) {
    bad_input(path.string(), "is corrupt: its SHA-256 is {} where its download recorded {}", sha256, *recorded);
  }
}

void Conversion::consume_finished() {
  if (!options_.consume) return;
  for (size_t i = 0; i < checkpoint_.shards().size(); ++i) {
    const checkpoint::Shard& shard = checkpoint_.shards()[i];
    if (last_use_[i] >= writer_->completed() || !shard.adopted_as.empty()) continue;
    if (!consumed_.contains(name_of(shard))) {
      consume(shard);
    } else if (fs::exists(shard_in_source(shard))) {
      // Entered in the journal, then interrupted: the same file still stands there.
      delete_source(shard_in_source(shard));
    }
  }
}

// Each step is on disk before the next: the data, the checksum, the stand-in, the intent; then the shard goes.
void Conversion::consume(const checkpoint::Shard& shard) {
  writer_->sync();
  if (!sha256_.contains(name_of(shard))) keep_hash(shard, hasher_->get(shard.path));
  make_stand_in(shard, partial_);
  Json entry;
  entry["consumed"] = name_of(shard);
  writer_->journal().append(std::move(entry), true);
  consumed_[name_of(shard)] = true;
  delete_source(shard_in_source(shard));
}

std::vector<SourceFile> Conversion::source_files() const {
  std::vector<SourceFile> files;
  files.reserve(texts_.size() + checkpoint_.shards().size() + 1);
  for (const Text& text : texts_) files.push_back({text.name, text.content.size(), sha256_of(text.content)});
  const char* index = "model.safetensors.index.json";
  if (!folders_.is_gguf() && fs::exists(source_ / index)) {
    files.push_back({index, fs::file_size(source_ / index), sha256_of_file(source_ / index)});
  }
  for (const checkpoint::Shard& shard : checkpoint_.shards()) {
    files.push_back({name_of(shard), shard.bytes, sha256_.at(name_of(shard))});
  }
  return files;
}

// What was chosen, for the provenance; verifying needs it.
Json Conversion::choices() const {
  Json choices;
  choices["dense"] = dense_policy_name(options_.choices.dense);
  choices["mtp-experts"] = mtp_experts_name(options_.choices.mtp_experts);
  for (const SourceFolders::Extra& extra : folders_.extras())
    choices[extra.name] = origin_json(find_origin(extra.folder));
  return choices;
}

Origin Conversion::origin() const {
  Origin origin = find_origin(source_);
  if (!options_.source_id.empty()) origin.repository = options_.source_id;
  if (!options_.source_revision.empty()) origin.revision = options_.source_revision;
  return origin;
}

// What is done stays for the next run, unless the source itself is at fault: then nothing of it is worth keeping. With
// shards already consumed it is all there is of them.
void Conversion::give_up(const base::Error& error) {
  hasher_.reset();
  progress_.reset();
  const size_t done = writer_->completed();
  writer_.reset();
  if (error.kind() == base::ErrorKind::kBadInput && consumed_.empty()) {
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
    throw error;
  }
  throw base::Error(error.kind(), error.source(),
                    fmt::format("{}; {} of {} objects are kept in {}, and the same command goes on from there",
                                error.message(), done, plans_.size(), partial_.string()));
}

// False where `out` is complete already but for the clean-up of the run that made it.
bool needs_conversion(const fs::path& out, bool force) {
  if (!fs::exists(out)) return true;
  const bool is_artifact = fs::exists(out / artifact::kDirectoryFile);
  if (is_artifact && fs::exists(out / artifact::kJournalFile)) {
    artifact::remove_leftovers(out);
    return false;
  }
  if (!force) {
    bad_input(out.string(), "exists already{}", is_artifact ? "; --force replaces it" : " and is not an artifact");
  }
  if (!is_artifact) bad_input(out.string(), "is not an artifact, and --force replaces only artifacts");
  return true;
}

}  // namespace

Result convert(const SourceFolders& source, const fs::path& out, const Options& options) {
  if (options.part_bytes < artifact::kAlignment) {
    bad_input("--part-size", "is {}, below the alignment of objects, {}", options.part_bytes, artifact::kAlignment);
  }
  if (options.consume && source.is_gguf()) {
    bad_input("--consume", "deletes shards of a folder as it goes; {} is a GGUF file", source.base.string());
  }
  if (!needs_conversion(out, options.force)) {
    Result result;
    result.artifact = out;
    result.warnings.push_back("was complete already; only what an interrupted run had left was removed");
    return result;
  }
  try {
    return Conversion(source, out, options).run();
  } catch (const fs::filesystem_error& error) {
    base::unavailable(error.path1().string(), "{}", error.code().message());
  }
}

}  // namespace tandem::convert
