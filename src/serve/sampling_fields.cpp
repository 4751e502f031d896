#include "serve/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

#include "serve/fields.h"

namespace tandem::serve {

using base::Json;

namespace {

std::optional<uint64_t> read_seed(const Json& body) {
  const auto seed = int_field(body, "seed");
  if (seed && *seed < -1) base::bad_input("seed", "{} is negative (-1 draws one at random)", *seed);
  if (!seed || *seed < 0) return std::nullopt;
  return static_cast<uint64_t>(*seed);
}

// Two names are in use for it.
std::optional<double> read_repetition_penalty(const Json& body) {
  const auto penalty = number_field(body, "repetition_penalty");
  const auto other = number_field(body, "repeat_penalty");
  if (penalty && other && *penalty != *other) base::bad_input("repeat_penalty", "differs from repetition_penalty");
  return penalty ? penalty : other;
}

// An object from token ids, as strings, to numbers.
std::vector<engine::LogitBias> read_logit_bias(const Json& body) {
  std::vector<engine::LogitBias> out;
  const Json& biases = object_field(body, "logit_bias");
  if (biases.is_null()) return out;
  for (const auto& [key, value] : biases.items()) {
    engine::LogitBias bias;
    const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), bias.token);
    if (fault != std::errc() || end != key.data() + key.size() || bias.token < 0) {
      base::bad_input("logit_bias", "the key {} is no token id", key.substr(0, 40));
    }
    if (!value.is_number()) {
      base::bad_input("logit_bias", "the bias of token {} must be a number, not {}", key, value.type_name());
    }
    bias.bias = value.get<float>();
    out.push_back(bias);
  }
  return out;
}

}  // namespace

std::vector<std::string> read_stop(const Json& value, const char* field) {
  std::vector<std::string> out;
  if (value.is_null()) return out;
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& string : list) {
    if (!string.is_string()) {
      base::bad_input(field, "must be a string or an array of strings, not {}", string.type_name());
    }
    out.push_back(string.get<std::string>());
  }
  return out;
}

std::optional<int64_t> read_token_limit(const Json& body, const char* field) {
  const auto value = int_field(body, field);
  if (!value || *value == -1) return std::nullopt;
  if (*value < 0) base::bad_input(field, "{} is negative", *value);
  return value;
}

void read_sampling(const Json& body, engine::Request& request) {
  engine::SamplingRequest& sampling = request.sampling;
  sampling.temperature = number_field(body, "temperature");
  sampling.top_p = number_field(body, "top_p");
  sampling.min_p = number_field(body, "min_p");
  sampling.presence_penalty = number_field(body, "presence_penalty");
  sampling.frequency_penalty = number_field(body, "frequency_penalty");
  sampling.repetition_penalty = read_repetition_penalty(body);
  sampling.top_k = int_field(body, "top_k");
  if (sampling.top_k == -1) sampling.top_k = 0;  // "all tokens" as some clients write it
  sampling.logit_bias = read_logit_bias(body);
  sampling.seed = read_seed(body);
  request.stop = read_stop(base::json_member(body, "stop"), "stop");
  request.min_tokens = read_token_limit(body, "min_tokens").value_or(0);
  request.ignore_end_tokens = bool_field(body, "ignore_eos").value_or(false);
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    const auto limit = read_token_limit(body, field);
    if (limit) request.max_tokens = std::min(request.max_tokens.value_or(*limit), *limit);
  }
}

}  // namespace tandem::serve
