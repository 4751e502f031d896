// Models of synthetic weights for benches, and the bytes that a decoded token reads of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "artifact/artifact.h"
#include "model/config.h"
#include "synth/model.h"

namespace tandem::app {

// The published sizes with the settings' own, without vision and draft head, which a token does not read.
synth::Settings without_extras(synth::Settings settings);

// The artifact of a synthetic model, made while it is read.
artifact::Artifact synthetic_artifact(const std::shared_ptr<const synth::Model>& model);

// What one decoded token reads of the weights.
struct TokenBytes {
  uint64_t dense = 0;
  uint64_t expert = 0;   // of one expert in every layer that has experts, on average
  uint64_t experts = 0;  // of the chosen ones
};
TokenBytes bytes_of_token(const artifact::Artifact& artifact, const model::Config& config);

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, unsigned seed = 1);

}  // namespace tandem::app
