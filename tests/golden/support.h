// The reference tensors (README.md beside this file) and the demo models loaded for comparison with them.
#pragma once

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "context/sequence.h"
#include "convert/recipe.h"
#include "model/model.h"
#include "tests/support/reencoded_checkpoint.h"

namespace tandem::golden {

// One file of reference tensors.
class Reference {
 public:
  explicit Reference(const std::string& file);  // of the references
  std::vector<float> floats(const std::string& name) const;
  std::vector<int32_t> ints(const std::string& name) const;
  std::vector<uint8_t> bytes(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;

 private:
  checkpoint::Checkpoint file_;
};

// The artifact of a demo model, converted once a process into a temporary folder that is removed at its end.
// `name` is demo-dense, demo-flash or …-random.
const artifact::Artifact& demo_artifact(const std::string& name,
                                        convert::MtpExperts mtp_experts = convert::MtpExperts::kKeep);

// The artifact of a checkpoint that a test wrote, and the checkpoint's folder; both go with the process.
struct WrittenArtifact {
  std::filesystem::path source;
  artifact::Artifact artifact;
};
// demo-dense with its matrices in a form, and with what they hold in FP32.
struct Reencoded {
  WrittenArtifact encoded, decoded;
};
Reencoded reencoded_artifacts(reencode::MatrixForm form);

// A model loaded to the device of the tests, with room for a few sequences of `tokens`.
class Loaded {
 public:
  Loaded(const std::string& name, const model::LoadOptions& options, int64_t tokens = 4096, int slots = 2)
      : Loaded(demo_artifact(name), options, tokens, slots) {}
  Loaded(const artifact::Artifact& artifact, const model::LoadOptions& options, int64_t tokens = 4096, int slots = 2);
  model::Model& model() { return *model_; }
  context::Sequence sequence() { return sequences_->create(); }

 private:
  base::WorkerPool pool_{0};
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<context::SequencePool> sequences_;
};

inline model::LoadOptions reference_options() {
  model::LoadOptions options;
  options.activations = model::Activations::kF32;
  options.expert_mode = model::ExpertMode::kW4A16;
  options.draft_head = true;
  return options;
}

// Largest absolute difference, and the norm of the difference over the norm of the wanted values.
double largest_difference(const std::vector<float>& got, const std::vector<float>& want);
double relative_norm(const std::vector<float>& got, const std::vector<float>& want);
int32_t argmax(const float* row, int64_t count);
// Rows [first, first + rows) of each of `layers` blocks of `tokens` rows.
std::vector<float> last_rows(const std::vector<float>& values, int64_t layers, int64_t tokens, int64_t rows);

}  // namespace tandem::golden
