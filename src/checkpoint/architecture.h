// What a config.json promises: the parameters of the model, by name and shape, whatever number format each is stored
// in. Lists qwen3_5, qwen3_5_moe and qwen4_exp, with their draft heads and their vision tower.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace tandem::checkpoint {

// What a parameter belongs to: number formats are reported by group.
enum class Group : uint8_t {
  kEmbedding,
  kHead,
  kNorms,
  kAttention,
  kDeltaNet,
  kHyperConnections,
  kMlp,
  kRouter,
  kSharedExpert,
  kExperts,
  kNgramMemory,
  kNgramTable,
  kDraft,
  kDraftExperts,
  kVision,
};
inline constexpr size_t kGroups = 15;
std::string_view group_name(Group group);

enum class ParameterKind : uint8_t {
  kPlain,    // a float tensor of its own name, never quantised: norms, convolutions, biases, decay rates
  kInteger,  // I64 constants
  kMatrix,   // a product's weight: `name` is the module, its tensors are name.weight and so on
  kExperts,  // `name`.E.{gate,up,down}_proj, or fused `name`.gate_up_proj and `name`.down_proj
  kTable,    // rows in parts: `name`.shard_K.weight
};

struct Parameter {
  std::string name;
  ParameterKind kind = ParameterKind::kPlain;
  Group group = Group::kNorms;
  // kMatrix: [rows, inputs]; kExperts: [experts, inner, hidden]; kTable: [parts, rows of a part, width]; else the
  // tensor's.
  std::vector<int64_t> shape;
};

struct Architecture {
  std::string family;  // qwen3_5, qwen3_5_moe or qwen4_exp
  std::vector<Parameter> parameters;

  // Elements of the parameters of a group.
  uint64_t elements(Group group) const;
  uint64_t elements() const;
};

// Throws base::Error{kBadInput} with `source` and the key for an unknown architecture and for values that no
// checkpoint of the family can have.
Architecture read_architecture(const base::Json& config, const std::string& source);

}  // namespace tandem::checkpoint
