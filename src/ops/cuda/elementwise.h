// Norms, sums, gates and the depthwise convolution on the card: one pass over their operands each, bound by memory for
// many tokens and by the launch (about 2 us) for few. Arguments are those of ops::Ops. Sums, gates and the convolution
// have the host's bits; norms differ from the host's in the order of their sums.
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

void rms_norm(const Context& context, const float* x, int64_t tokens, int64_t groups, int64_t width,
              const float* weight, float eps, float* out);
void add(const Context& context, float* y, const float* x, int64_t count);
// One launch where rows are multiples of four values.
void add_rms_norm(const Context& context, float* y, const float* x, int64_t tokens, int64_t width, const float* weight,
                  float eps, float* out);
void add_to_streams(const Context& context, float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden);
void hyper_inject(const Context& context, float* state, const float* y, const float* inject, int64_t tokens,
                  int64_t streams, int64_t hidden);
void concatenate(const Context& context, const float* left, const float* right, int64_t tokens, int64_t width,
                 float* out);
void silu_multiply(const Context& context, const float* gate, const float* up, int64_t count, float* y);
void gated_norm(const Context& context, float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim,
                const float* weight, float eps, bool sigmoid);

// At most kMostTaps taps. Padding columns get zeros. Runs of at most eight columns take one launch, longer ones two.
inline constexpr int64_t kMostTaps = 16;
void causal_conv(const Context& context, const Columns& columns, const float* x, int64_t channels, const float* weight,
                 int64_t kernel, int64_t dilation, int64_t history, float* out);
// The same, added to `out`; padding columns stay as they are.
void add_causal_conv(const Context& context, const Columns& columns, const float* x, int64_t channels,
                     const float* weight, int64_t kernel, int64_t dilation, int64_t history, float* out);

}  // namespace tandem::ops::cuda
