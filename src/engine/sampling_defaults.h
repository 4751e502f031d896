// What a request that names no sampling gets, and where answers end (docs/sampling.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace tandem::engine {

// The family's advice for answers that think first, and for plain ones (the model cards of Qwen3.8).
inline constexpr Sampling kThinkingPreset{.temperature = 1.0, .top_p = 0.95, .top_k = 20};
inline constexpr Sampling kPlainPreset{.temperature = 0.7, .top_p = 0.8, .top_k = 20, .presence_penalty = 1.5};

// What a checkpoint's generation_config.json says.
struct GenerationDefaults {
  bool greedy = false;  // do_sample is false
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
  std::vector<int32_t> end_tokens;  // eos_token_id, one or a list

  // Whether every value that is named equals the family's thinking preset. Such a file repeats the family's advice for
  // thinking and says nothing about plain answers; any other is the checkpoint's own advice and holds for both.
  bool only_repeats_family() const;

  // `generation_config` is null or an object. Throws base::Error{kBadInput}, naming the key, for values out of range.
  static GenerationDefaults from_json(const base::Json& generation_config, const std::string& source);
};

// The sampling of a request: its own values, else the checkpoint's, else the preset of the mode. A greedy answer gets
// no penalties that the request does not name. Throws base::Error{kBadInput} for a value out of range, naming the
// field.
Sampling resolve_sampling(const SamplingRequest& request, const GenerationDefaults& checkpoint, bool thinking);

// The tokens that end an answer: the checkpoint's and the tokenizer's <|im_end|> and <|endoftext|>; ascending. Throws
// base::Error{kBadInput} where a token of the checkpoint is none of the tokenizer's.
std::vector<int32_t> end_tokens(const GenerationDefaults& checkpoint, const text::Tokenizer& tokenizer,
                                const std::string& source);

}  // namespace tandem::engine
