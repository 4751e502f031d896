#include "convert/verify.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/hash.h"
#include "base/progress.h"
#include "base/units.h"
#include "convert/recipe.h"
#include "convert/source.h"

namespace tandem::convert {

namespace {

using artifact::Artifact;
using artifact::Encoding;
using artifact::Object;
using checkpoint::Checkpoint;
using checkpoint::Tensor;

class Verifier {
 public:
  Verifier(const Artifact& artifact, const Checkpoint* checkpoint, base::Progress& progress)
      : artifact_(artifact), checkpoint_(checkpoint), progress_(progress) {
    if (checkpoint_ == nullptr) return;
    compared_.resize(checkpoint_->tensors().size());
    reencoded_.resize(checkpoint_->tensors().size());
  }

  // `plan` is null where the object is not compared with a checkpoint.
  void check(const Object& object, const ObjectPlan* plan);
  // After the last object.
  void check_coverage();
  void fault(std::string line) { result_.faults.push_back(std::move(line)); }
  Verification& result() { return result_; }

 private:
  void compare(const Tensor& tensor, uint64_t offset, std::span<const std::byte> found);
  void check_text(const Object& object, const ObjectPlan& plan, uint64_t chunk, std::span<const std::byte> found);
  void check_reencoded(const Object& object, const ObjectPlan& plan, uint64_t chunk, std::span<const std::byte> found);
  void check_padding(const Object& object);
  size_t index_of(const Tensor& tensor) const { return static_cast<size_t>(&tensor - checkpoint_->tensors().data()); }
  void differ(const std::string& name, uint64_t offset, std::span<const std::byte> expected,
              std::span<const std::byte> found);
  std::string place(const Object& object) const {
    return fmt::format("{} ({} at byte {})", object.name, artifact::part_name(object.part), object.offset);
  }

  const Artifact& artifact_;
  const Checkpoint* checkpoint_;
  base::Progress& progress_;
  Verification result_;
  std::vector<uint64_t> compared_;  // bytes of each tensor that were compared
  std::vector<bool> reencoded_;
  std::vector<std::string> differing_;  // names, each once in a row
  std::vector<std::byte> expected_;
};

void Verifier::check(const Object& object, const ObjectPlan* plan) {
  const uint64_t step = plan != nullptr ? plan->chunk_bytes() : kChunkBytes;
  base::Xxh3 hash;
  std::vector<std::byte> buffer;
  bool padded = true;
  for (uint64_t at = 0; at < object.bytes; at += step) {
    buffer.resize(std::min(step, object.bytes - at));
    artifact_.read(object, at, buffer);
    hash.update(buffer);
    progress_.add(buffer.size());
    if (plan == nullptr) continue;
    if (object.encoding == Encoding::kText) {
      check_text(object, *plan, at / step, buffer);
      continue;
    }
    if (plan->reencodes()) {
      check_reencoded(object, *plan, at / step, buffer);
      continue;
    }
    padded = plan->invert(at / step, buffer,
                          [&](const Tensor& tensor, uint64_t offset, std::span<const std::byte> bytes) {
                            compare(tensor, offset, bytes);
                          }) &&
             padded;
  }
  if (!padded) fault(fmt::format("{}: padding inside the object is not zero", place(object)));
  const std::string checksum = hash.hex();
  if (checksum != object.xxh3_128) {
    fault(fmt::format("{}: the checksum is {} where the directory says {}", place(object), checksum, object.xxh3_128));
  }
  check_padding(object);
  ++result_.objects;
  result_.bytes += object.bytes;
  if (plan != nullptr && object.encoding == Encoding::kText) ++result_.texts;
}

void Verifier::check_text(const Object& object, const ObjectPlan& plan, uint64_t chunk,
                          std::span<const std::byte> found) {
  expected_.resize(found.size());
  plan.make(*checkpoint_, chunk, expected_);
  differ(object.name, chunk * plan.chunk_bytes(), expected_, found);
}

void Verifier::check_reencoded(const Object& object, const ObjectPlan& plan, uint64_t chunk,
                               std::span<const std::byte> found) {
  expected_.resize(found.size());
  plan.make(*checkpoint_, chunk, expected_);
  differ(object.name, chunk * plan.chunk_bytes(), expected_, found);
  for (const Tensor* tensor : plan.tensors()) reencoded_[index_of(*tensor)] = true;
}

void Verifier::compare(const Tensor& tensor, uint64_t offset, std::span<const std::byte> found) {
  expected_.resize(found.size());
  checkpoint_->read(tensor, offset, expected_);
  compared_[index_of(tensor)] += found.size();
  result_.tensor_bytes += found.size();
  differ(tensor.name, offset, expected_, found);
}

void Verifier::differ(const std::string& name, uint64_t offset, std::span<const std::byte> expected,
                      std::span<const std::byte> found) {
  const auto [want, have] = std::ranges::mismatch(expected, found);
  if (want == expected.end()) return;
  const Difference difference{.name = name,
                              .byte = offset + static_cast<uint64_t>(want - expected.begin()),
                              .expected = std::to_integer<uint8_t>(*want),
                              .found = std::to_integer<uint8_t>(*have)};
  if (differing_.empty() || differing_.back() != name) differing_.push_back(name);
  if (result_.first_difference) return;
  fault(fmt::format("{}: byte {} is {:#04x} where the source has {:#04x}", name, difference.byte, difference.found,
                    difference.expected));
  result_.first_difference = difference;
}

void Verifier::check_padding(const Object& object) {
  const uint64_t end = object.offset + object.bytes;
  const base::File& file = artifact_.part(object.part);
  const uint64_t padded_end = std::min(base::round_up(end, artifact::kAlignment), file.size());
  if (end >= padded_end) return;
  std::vector<std::byte> padding(padded_end - end);
  file.read_at(end, padding);
  if (!all_zero(padding)) fault(fmt::format("{}: the padding behind the object is not zero", place(object)));
}

void Verifier::check_coverage() {
  std::ranges::sort(differing_);
  differing_.erase(std::unique(differing_.begin(), differing_.end()), differing_.end());
  result_.differing = differing_.size();
  for (size_t i = 0; i < compared_.size(); ++i) {
    const Tensor& tensor = checkpoint_->tensors()[i];
    if (reencoded_[i]) {
      ++result_.reencoded;
    } else if (compared_[i] == tensor.bytes) {
      ++result_.tensors;
    } else {
      fault(fmt::format("{}: {} of {} bytes are in the artifact", tensor.name, compared_[i], tensor.bytes));
    }
  }
}

// Encoding and shape of the object that the plan asks for.
bool same_form(const Object& object, const Object& planned) {
  return object.encoding == planned.encoding && object.shape == planned.shape && object.bytes == planned.bytes &&
         object.formats == planned.formats && object.packed_words == planned.packed_words;
}

void verify_against(const Artifact& artifact, const Plans& plans, Verifier& verifier) {
  std::unordered_map<std::string_view, const ObjectPlan*> planned;
  for (const auto& plan : plans) {
    planned.emplace(plan->object().name, plan.get());
    if (artifact.find(plan->object().name) == nullptr) {
      verifier.fault(fmt::format("{}: the source has it, the artifact does not", plan->object().name));
    }
  }
  for (const Object& object : artifact.objects()) {
    const auto found = planned.find(object.name);
    const ObjectPlan* plan = found == planned.end() ? nullptr : found->second;
    if (plan == nullptr) {
      verifier.fault(fmt::format("{}: the artifact has it, the source does not", object.name));
    } else if (!same_form(object, plan->object())) {
      verifier.fault(fmt::format("{}: is {} [{}] where the source asks for {} [{}]", object.name,
                                 artifact::describe_encoding(object), fmt::join(object.shape, ", "),
                                 artifact::describe_encoding(plan->object()), fmt::join(plan->object().shape, ", ")));
      plan = nullptr;
    }
    verifier.check(object, plan);
  }
  verifier.check_coverage();
}

}  // namespace

namespace {

// What the conversion chose, by the artifact's own account. Refuses folders other than those that it was made from.
Choices read_choices(const Artifact& artifact, const SourceFolders& folders) {
  const base::Json& choices = base::json_member(artifact.provenance(), "choices");
  const std::string source = artifact.folder().string();
  const auto read = [&](const char* choice, auto from_name) {
    const std::string name = base::json_string(choices, choice, "keep", source);
    const auto policy = from_name(name);
    if (!policy) base::bad_input(source, "was made with --{} {}, which is not known", choice, name);
    return *policy;
  };
  const Choices made = {read("dense", dense_policy_from_name), read("mtp-experts", mtp_experts_from_name)};
  const auto given = [&](const char* extra) {
    const auto extras = folders.extras();
    return std::ranges::any_of(extras,
                               [extra](const SourceFolders::Extra& e) { return std::string_view(e.name) == extra; });
  };
  for (const char* extra : {"mtp-from", "vision-from", "experts-from", "texts-from"}) {
    if (choices.contains(extra) == given(extra)) continue;
    base::bad_input(source, "was made {} --{}: compare it with the same folders",
                    choices.contains(extra) ? "with" : "without", extra);
  }
  return made;
}

}  // namespace

Verification verify(const Artifact& artifact, const std::optional<SourceFolders>& source, bool quiet) {
  uint64_t total = 0;
  for (const Object& object : artifact.objects()) total += object.bytes;
  std::optional<Checkpoint> checkpoint;
  Plans plans;
  if (source) {
    checkpoint = open_all(*source, {});
    plans = plan_published(*checkpoint, read_texts(source->texts()), read_choices(artifact, *source));
  }
  base::Progress progress("verifying", total, base::ProgressUnit::kBytes, quiet);
  Verifier verifier(artifact, checkpoint ? &*checkpoint : nullptr, progress);
  if (source) {
    verify_against(artifact, plans, verifier);
  } else {
    for (const Object& object : artifact.objects()) verifier.check(object, nullptr);
  }
  return std::move(verifier.result());
}

}  // namespace tandem::convert
