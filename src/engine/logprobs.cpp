#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::engine {

StepLogprobs step_logprobs(std::span<const float> logits, int32_t drawn, int64_t top) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - peak);
  const double normaliser = peak + std::log(sum);
  const auto logprob = [&](int32_t token) {
    return TokenLogprob{token, static_cast<float>(logits[static_cast<size_t>(token)] - normaliser)};
  };
  StepLogprobs out{.drawn = logprob(drawn), .top = {}};
  if (top == 0) return out;
  std::vector<int32_t> best(logits.size());
  std::iota(best.begin(), best.end(), 0);
  const auto end = best.begin() + std::min(top, static_cast<int64_t>(best.size()));
  std::partial_sort(best.begin(), end, best.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (auto token = best.begin(); token != end; ++token) out.top.push_back(logprob(*token));
  return out;
}

}  // namespace tandem::engine
