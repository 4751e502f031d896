// Norms, hyper-connections, convolutions and the n-gram memory.
#include "ops/host/host_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/units.h"

namespace tandem::ops::host {

namespace {

// Work worth handing to another thread: about 20 microseconds of FMAs.
constexpr int64_t kGrainProducts = 1 << 18;

int64_t grain(int64_t products_each) {
  return std::max<int64_t>(1, kGrainProducts / std::max<int64_t>(1, products_each));
}

}  // namespace

void HostOps::rms_norm(const float* x, int64_t tokens, int64_t groups, int64_t width, const float* weight, float eps,
                       float* out) {
  pool_.run(tokens * groups, grain(8 * width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels_.rms_norm(x + i * width, width, eps, 1.0F, weight + i % groups * width, out + i * width);
    }
  });
}

void HostOps::add(float* y, const float* x, int64_t count) {
  pool_.run(count, 1 << 16,
            [&](int64_t begin, int64_t end) { kernels_.add_scaled(y + begin, x + begin, 1.0F, end - begin); });
}

void HostOps::add_to_streams(float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden) {
  pool_.run(tokens, grain(streams * hidden), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t s = 0; s < streams; ++s)
        kernels_.add_scaled(y + (t * streams + s) * hidden, x + t * hidden, 1.0F, hidden);
    }
  });
}

void HostOps::concatenate(const float* left, const float* right, int64_t tokens, int64_t width, float* out) {
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(left + t * width, width, out + 2 * t * width);
    std::copy_n(right + t * width, width, out + (2 * t + 1) * width);
  }
}

void HostOps::silu_multiply(const float* gate, const float* up, int64_t count, float* y) {
  pool_.run(count, 1 << 14, [&](int64_t begin, int64_t end) {
    kernels_.silu_multiply(gate + begin, up + begin, end - begin, y + begin);
  });
}

void HostOps::hyper_mix(const HyperWeights& w, const float* state, int64_t tokens, int64_t streams, int64_t hidden,
                        float eps, float* x, float* inject) {
  const int64_t width = streams * hidden;
  const float share = 1.0F / static_cast<float>(streams);
  float* normed = wide_a_.get(tokens * width);
  float* gate = wide_b_.get(tokens * width);
  float* low = narrow_.get(tokens * w.down.rows);
  rms_norm(state, tokens, streams, hidden, w.norm, eps, normed);
  linear(normed, tokens, w.down, false, low);
  kernels_.silu_scaled(low, tokens * w.down.rows, share);
  linear(low, tokens, w.up, false, gate);
  pool_.run(tokens, grain(8 * width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.mix_streams(gate + t * width, normed + t * width, streams, hidden, x + t * hidden);
    }
  });
  if (inject != nullptr) {
    linear(normed, tokens, w.inject, true, inject);
    kernels_.sigmoid_scaled(inject, tokens * streams, share, 2.0F);
  }
}

void HostOps::hyper_inject(float* state, const float* y, const float* inject, int64_t tokens, int64_t streams,
                           int64_t hidden) {
  pool_.run(tokens * streams, grain(2 * hidden), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels_.add_scaled(state + i * hidden, y + i / streams * hidden, inject[i], hidden);
    }
  });
}

void HostOps::causal_conv(const Columns& columns, const float* x, int64_t channels, const float* weight, int64_t kernel,
                          int64_t dilation, int64_t history, float* out) {
  int64_t first = 0;
  for (const Run& run : columns.runs) {
    convolve_run(run, x + first * channels, channels, weight, kernel, dilation,
                 reinterpret_cast<float*>(run.slot + history), columns.advance, out + first * channels);
    first += columns.each;
  }
}

void HostOps::convolve_run(const Run& run, const float* x, int64_t channels, const float* weight, int64_t kernel,
                           int64_t dilation, float* history, bool advance, float* out) {
  const int64_t tokens = run.tokens;
  const int64_t past = (kernel - 1) * dilation;
  pool_.run(tokens, grain(16 * channels), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* taps[16];
      for (int64_t j = 0; j < kernel; ++j) {
        const int64_t at = t - (kernel - 1 - j) * dilation;
        taps[j] = at >= 0 ? x + at * channels : history + (past + at) * channels;
      }
      kernels_.convolve(taps, kernel, weight, channels, out + t * channels);
    }
  });
  if (!advance) return;
  const int64_t kept = std::max<int64_t>(0, past - tokens);
  std::memmove(history, history + (past - kept) * channels, static_cast<size_t>(kept * channels) * sizeof(float));
  std::copy_n(x + (tokens - (past - kept)) * channels, (past - kept) * channels, history + kept * channels);
}

void HostOps::ngram_memory(const Columns& columns, const NgramWeights& w, const float* rows, int64_t streams,
                           int64_t hidden, float eps, int64_t history, float* state) {
  const int64_t tokens = columns.count();
  const int64_t width = streams * hidden;
  float* key = wide_a_.get(tokens * width);
  float* query = wide_b_.get(tokens * width);
  float* gated = wide_c_.get(tokens * width);
  float* value = narrow_.get(tokens * hidden);
  linear(rows, tokens, w.key, false, query);
  rms_norm(query, tokens, streams, hidden, w.norm_key, eps, key);
  linear(rows, tokens, w.value, false, value);
  rms_norm(state, tokens, streams, hidden, w.norm_query, eps, query);
  const float root = std::sqrt(static_cast<float>(hidden));
  for (int64_t i = 0; i < tokens * streams; ++i) {
    float score = 0;
    const Weight row{.data = key + i * hidden, .format = WeightFormat::kF32, .rows = 1, .inputs = hidden};
    kernels_.linear(query + i * hidden, hidden, 1, row, 0, 1, &score, nullptr, 1, nullptr);
    score /= root;
    score = std::copysign(std::sqrt(std::max(std::fabs(score), 1e-6F)), score) * (score == 0.0F ? 0.0F : 1.0F);
    kernels_.sigmoid_scaled(&score, 1, 1.0F, 1.0F);
    std::fill_n(gated + i * hidden, hidden, 0.0F);
    kernels_.add_scaled(gated + i * hidden, value + i / streams * hidden, score, hidden);
  }
  rms_norm(gated, tokens, streams, hidden, w.norm_conv, eps, key);
  causal_conv(columns, key, width, w.conv, w.kernel, w.dilation, history, query);
  add(state, gated, tokens * width);
  add(state, query, tokens * width);
}

void HostOps::greedy(const Greedy& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* row = args.logits + r * args.vocab;
    const uint32_t* allowed = args.allowed == nullptr ? nullptr : args.allowed + r * base::ceil_div(args.tokens, 32);
    bool finite = true;
    int64_t best = -1;
    for (int64_t i = 0; i < args.tokens; ++i) {
      finite &= std::abs(row[i]) <= std::numeric_limits<float>::max();
      if (allowed != nullptr && (allowed[i / 32] >> (i % 32) & 1U) == 0) continue;
      if (best < 0 || row[i] > row[best]) best = i;
    }
    args.ids[r] = finite ? static_cast<int32_t>(best) : -1;
  }
}

void HostOps::top_logits(const TopLogits& args) {
  const auto better = [](const TokenLogit& a, const TokenLogit& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* row = args.logits + r * args.vocab;
    const uint32_t* allowed = args.allowed == nullptr ? nullptr : args.allowed + r * base::ceil_div(args.tokens, 32);
    TokenLogit* best = args.best + r * kTopLogits;  // a heap, the worst of them first
    TokenLogit* end = best;
    bool finite = true;
    for (int64_t i = 0; i < args.tokens; ++i) {
      if (!(std::abs(row[i]) <= std::numeric_limits<float>::max())) finite = false;
      if (!finite) break;
      // Ids ascend, so an equal logit is no better than what is kept.
      if (end - best == kTopLogits && !(row[i] > best->logit)) continue;
      if (allowed != nullptr && (allowed[i / 32] >> (i % 32) & 1U) == 0) continue;
      if (end - best == kTopLogits) std::pop_heap(best, end--, better);
      *end++ = {row[i], static_cast<int32_t>(i)};
      std::push_heap(best, end, better);
    }
    if (finite) std::sort_heap(best, end, better);
    args.counts[r] = finite ? static_cast<int32_t>(end - best) : -1;
  }
}

}  // namespace tandem::ops::host
