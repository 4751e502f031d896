// From a published checkpoint to the objects of its artifact.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "convert/object_plan.h"

namespace tandem::convert {

// What is done with the matrices of dense products that are not quantised.
enum class DensePolicy : uint8_t {
  kKeep,
  // FP8 codes with an FP32 scale a row, amax / 448. For the projections of attention, DeltaNet, MLP and shared experts,
  // of the draft head too, and for lm_head where it is no embedding. Never for routers, gates, indexers, decay inputs,
  // hyper-connections, n-gram projections, embeddings and the vision tower, which are small or steer.
  kFp8Row,
};
const char* dense_policy_name(DensePolicy policy);  // "keep", "fp8-row"
std::optional<DensePolicy> dense_policy_from_name(std::string_view name);

// What is done with the draft head's routed experts.
enum class MtpExperts : uint8_t {
  kKeep,
  kNvfp4,  // re-encoded from FP8 blocks or BF16; other formats are kept
};
const char* mtp_experts_name(MtpExperts policy);  // "keep", "nvfp4"
std::optional<MtpExperts> mtp_experts_from_name(std::string_view name);

struct Choices {
  DensePolicy dense = DensePolicy::kKeep;
  MtpExperts mtp_experts = MtpExperts::kKeep;
};
// The name of the recipe in the provenance: "published" where every tensor keeps its format, else what does not,
// "dense-fp8-row", "mtp-experts-nvfp4", or both with a "+" between.
std::string recipe_name(const Choices& choices);

// A small file of the checkpoint.
struct Text {
  std::string name;
  std::string content;
};

// Every tensor keeps its format, but what the choices re-encode. First the texts, then the objects in the order in
// which their last source shard is needed, so that shards can be given up one after the other.
//   routed experts of a layer     one object named as their module, one record an expert; NVFP4 scalars in NAME.scalars
//   shards of the n-gram table    one object named as their module
//   every other tensor            one object under its own name; P.weight_scale beside a re-encoded P.weight
// Throws base::Error{kBadInput} that names the tensor where experts or shards are missing, have another shape than
// their siblings, or come in a form that is not known; and where the draft head's experts are to be re-encoded and
// there are none. The checkpoint must outlive the plans.
Plans plan_published(const checkpoint::Checkpoint& checkpoint, std::vector<Text> texts, const Choices& choices = {});

}  // namespace tandem::convert
