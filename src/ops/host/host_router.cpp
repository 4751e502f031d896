// The router, and how experts' and the shared expert's halves come together.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/host/host_ops.h"

namespace tandem::ops::host {

void HostOps::router(const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids, float* weights) {
  const int64_t experts = w.rows;
  float* logits = gates_.get(tokens * experts);
  linear(x, tokens, w, true, logits);
  pool_.run(tokens, 16, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> order(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      float* p = logits + t * experts;
      const float largest = *std::max_element(p, p + experts);
      float sum = 0;
      for (int64_t e = 0; e < experts; ++e) {
        p[e] = std::exp(p[e] - largest);
        sum += p[e];
      }
      for (int64_t e = 0; e < experts; ++e) p[e] /= sum;
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                        [&](int32_t a, int32_t b) { return p[a] > p[b] || (p[a] == p[b] && a < b); });
      float kept = 0;
      for (int64_t k = 0; k < top_k; ++k) kept += p[order[static_cast<size_t>(k)]];
      for (int64_t k = 0; k < top_k; ++k) {
        ids[t * top_k + k] = order[static_cast<size_t>(k)];
        weights[t * top_k + k] = p[order[static_cast<size_t>(k)]] / kept;
      }
    }
  });
}

void HostOps::experts(const Experts& args) {
  experts_.run(args, round_inputs_);
}

void HostOps::combine_experts(const float* lower, const float* upper, const float* shared_lower,
                              const float* shared_upper, const float* gate, int64_t tokens, int64_t hidden,
                              float* out) {
  pool_.run(tokens, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float g = 1.0F / (1.0F + std::exp(-gate[t]));
      for (int64_t i = t * hidden; i < (t + 1) * hidden; ++i) {
        out[i] = (lower[i] + g * shared_lower[i]) + (upper[i] + g * shared_upper[i]);
      }
    }
  });
}

}  // namespace tandem::ops::host
