#include "engine/sampling_defaults.h"

#include <algorithm>
#include <cmath>

namespace tandem::engine {
namespace {

struct Range {
  double low;
  double high;
  bool open_low = false;  // `low` itself is outside
};

constexpr Range kTemperature{0, 100};
constexpr Range kTopP{0, 1, true};
constexpr Range kMinP{0, 1};
constexpr Range kPenalty{-2, 2};
constexpr Range kRepetition{0, 2, true};
constexpr Range kBias{-100, 100};

void check(double value, const Range& range, const std::string& field) {
  // Written so that a NaN fails.
  const bool inside = value >= range.low && value <= range.high && !(range.open_low && value == range.low);
  if (!inside) {
    base::bad_input(field, "{} is outside {}{}, {}]", value, range.open_low ? "(" : "[", range.low, range.high);
  }
}

void check_top_k(int64_t value, const std::string& field) {
  if (value < 0) base::bad_input(field, "{} is negative; 0 switches it off", value);
}

void check_bias(const std::vector<LogitBias>& biases) {
  if (biases.size() > kMostLogitBiases) {
    base::bad_input("logit_bias", "names {} tokens, at most {} are taken", biases.size(), kMostLogitBiases);
  }
  for (const LogitBias& bias : biases) check(bias.bias, kBias, "logit_bias");
}

std::optional<double> optional_number(const base::Json& object, const char* key, const Range& range,
                                      const std::string& source) {
  if (base::json_member(object, key).is_null()) return std::nullopt;
  const double value = base::json_number(object, key, source);
  check(value, range, source + ": " + key);
  return value;
}

std::vector<int32_t> token_list(const base::Json& value, const std::string& source) {
  std::vector<int32_t> tokens;
  if (value.is_null()) return tokens;
  const base::Json list = value.is_array() ? value : base::Json::array({value});
  for (const auto& item : list) {
    if (!item.is_number_integer() || item < 0 || item > INT32_MAX) {
      base::bad_input(source, "eos_token_id holds {}, which is no token id", item.dump());
    }
    tokens.push_back(item.get<int32_t>());
  }
  return tokens;
}

}  // namespace

GenerationDefaults GenerationDefaults::from_json(const base::Json& json, const std::string& source) {
  GenerationDefaults defaults;
  if (json.is_null()) return defaults;
  if (!json.is_object()) base::bad_input(source, "is not a JSON object");
  defaults.greedy = !base::json_bool(json, "do_sample", true, source);
  defaults.temperature = optional_number(json, "temperature", kTemperature, source);
  defaults.top_p = optional_number(json, "top_p", kTopP, source);
  defaults.min_p = optional_number(json, "min_p", kMinP, source);
  if (!base::json_member(json, "top_k").is_null()) {
    defaults.top_k = base::json_int(json, "top_k", source);
    check_top_k(*defaults.top_k, source + ": top_k");
  }
  defaults.end_tokens = token_list(base::json_member(json, "eos_token_id"), source);
  return defaults;
}

bool GenerationDefaults::only_repeats_family() const {
  return !greedy && temperature.value_or(kThinkingPreset.temperature) == kThinkingPreset.temperature &&
         top_p.value_or(kThinkingPreset.top_p) == kThinkingPreset.top_p &&
         min_p.value_or(kThinkingPreset.min_p) == kThinkingPreset.min_p &&
         top_k.value_or(kThinkingPreset.top_k) == kThinkingPreset.top_k;
}

Sampling resolve_sampling(const SamplingRequest& request, const GenerationDefaults& checkpoint, bool thinking) {
  Sampling sampling = thinking ? kThinkingPreset : kPlainPreset;
  if (!checkpoint.only_repeats_family()) {
    sampling.temperature = checkpoint.greedy ? 0 : checkpoint.temperature.value_or(sampling.temperature);
    sampling.top_p = checkpoint.top_p.value_or(sampling.top_p);
    sampling.top_k = checkpoint.top_k.value_or(sampling.top_k);
    sampling.min_p = checkpoint.min_p.value_or(sampling.min_p);
  }
  sampling.temperature = request.temperature.value_or(sampling.temperature);
  // The presets' penalty is advice for sampling; on a greedy answer it would only change what the model says.
  if (sampling.temperature == 0) sampling.presence_penalty = 0;
  sampling.top_p = request.top_p.value_or(sampling.top_p);
  sampling.top_k = request.top_k.value_or(sampling.top_k);
  sampling.min_p = request.min_p.value_or(sampling.min_p);
  sampling.presence_penalty = request.presence_penalty.value_or(sampling.presence_penalty);
  sampling.frequency_penalty = request.frequency_penalty.value_or(sampling.frequency_penalty);
  sampling.repetition_penalty = request.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.logit_bias = request.logit_bias;
  sampling.seed = request.seed;

  check(sampling.temperature, kTemperature, "temperature");
  check(sampling.top_p, kTopP, "top_p");
  check_top_k(sampling.top_k, "top_k");
  check(sampling.min_p, kMinP, "min_p");
  check(sampling.presence_penalty, kPenalty, "presence_penalty");
  check(sampling.frequency_penalty, kPenalty, "frequency_penalty");
  check(sampling.repetition_penalty, kRepetition, "repetition_penalty");
  check_bias(sampling.logit_bias);
  return sampling;
}

std::vector<int32_t> end_tokens(const GenerationDefaults& checkpoint, const text::Tokenizer& tokenizer,
                                const std::string& source) {
  std::vector<int32_t> tokens = checkpoint.end_tokens;
  for (const int32_t token : tokens) {
    if (token >= tokenizer.size()) {
      base::bad_input(source, "eos_token_id {} is outside the tokenizer's {} tokens", token, tokenizer.size());
    }
  }
  for (const char* name : {"<|im_end|>", "<|endoftext|>"}) {
    if (const auto token = tokenizer.added_token(name)) tokens.push_back(*token);
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

}  // namespace tandem::engine
