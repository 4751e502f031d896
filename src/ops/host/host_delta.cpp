// Gated DeltaNet: gates, the two forms of the recurrence, the gated output norm.
#include <algorithm>
#include <cmath>

#include "ops/host/host_ops.h"

namespace tandem::ops::host {

namespace {

constexpr int64_t kChunk = 64;

// log(1 + e^x) without overflow; torch's threshold of 20, above which the result is x.
float softplus(float x) {
  return x > 20.0F ? x : std::log1p(std::exp(x));
}

}  // namespace

void HostOps::delta_net(const Columns& columns, const DeltaNet& args) {
  const int64_t heads = args.value_heads;
  const int64_t tokens = columns.count();
  float* beta = gates_.get(2 * tokens * heads);
  float* decay = beta + tokens * heads;
  for (int64_t i = 0; i < tokens * heads; ++i) {
    const int64_t h = i % heads;
    beta[i] = 1.0F / (1.0F + std::exp(-args.b[i]));
    decay[i] = -std::exp(args.a_log[h]) * softplus(args.a[i] + args.dt_bias[h]);
  }
  const int64_t stride = 2 * args.key_heads * args.key_dim + heads * args.value_dim;
  const int64_t state_floats = heads * args.key_dim * args.value_dim;
  int64_t first = 0;
  for (const Run& run : columns.runs) {
    auto* state = reinterpret_cast<float*>(run.slot + args.state);
    if (!columns.advance) {
      float* twin = state_.get(state_floats);
      std::copy_n(state, state_floats, twin);
      state = twin;
    }
    delta_run(run, args, args.qkv + first * stride, beta + first * heads, decay + first * heads, state,
              args.out + first * heads * args.value_dim);
    first += columns.each;
  }
}

void HostOps::delta_run(const Run& run, const DeltaNet& args, const float* qkv, const float* beta, const float* decay,
                        float* state, float* out) {
  const int64_t heads = args.value_heads;
  const int64_t stride = 2 * args.key_heads * args.key_dim + heads * args.value_dim;
  const int64_t group = heads / args.key_heads;
  const int64_t workspace_floats = kernels_.delta_chunk_workspace(args.key_dim, args.value_dim);
  pool_.run(heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> workspace;
    for (int64_t h = begin; h < end; ++h) {
      for (int64_t t = 0; t < run.tokens;) {
        // Up to the next border of the absolute grid; a whole chunk takes the chunk form.
        const int64_t in_chunk = (run.position + t) % kChunk;
        const int64_t count = std::min(run.tokens - t, kChunk - in_chunk);
        const float* row = qkv + t * stride;
        const DeltaHead head{
            .query = row + h / group * args.key_dim,
            .key = row + (args.key_heads + h / group) * args.key_dim,
            .value = row + 2 * args.key_heads * args.key_dim + h * args.value_dim,
            .stride = stride,
            .beta = beta + t * heads + h,
            .decay = decay + t * heads + h,
            .gate_stride = heads,
            .tokens = count,
            .key_dim = args.key_dim,
            .value_dim = args.value_dim,
            .state = state + h * args.key_dim * args.value_dim,
            .out = out + (t * heads + h) * args.value_dim,
            .out_stride = heads * args.value_dim,
        };
        if (count == kChunk) {
          workspace.resize(static_cast<size_t>(workspace_floats));
          kernels_.delta_chunk(head, workspace.data());
        } else {
          kernels_.delta_steps(head);
        }
        t += count;
      }
    }
  });
}

void HostOps::gated_norm(float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim, const float* weight,
                         float eps, bool sigmoid) {
  pool_.run(tokens * heads, std::max<int64_t>(1, 16384 / dim), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels_.rms_norm(x + i * dim, dim, eps, 0.0F, weight, x + i * dim);
      kernels_.multiply_gate(x + i * dim, z + i * dim, dim, sigmoid);
    }
  });
}

}  // namespace tandem::ops::host
