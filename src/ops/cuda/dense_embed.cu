// Rows of an embedding table. Cost: the row's bytes once (over the bus where the table lies in the host's memory), its
// FP32 copies written.
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_decode.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

using namespace dense;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kEmbedThreads = 256;

template <WeightFormat kFormat, bool kWide>
__global__ void __launch_bounds__(kEmbedThreads)
    embed_rows(Weight table, const int32_t* ids, int64_t copies, float* out) {
  follow();
  const int64_t token = blockIdx.y;
  const int64_t width = table.inputs;
  const int64_t input = 4 * (static_cast<int64_t>(blockIdx.x) * kEmbedThreads + threadIdx.x);
  if (input >= width) return;
  const int64_t row = ids[token];
  float values[4];
  decode_up_to_four<kFormat, kWide>(table, row, input, width, values);
#pragma unroll
  for (float& value : values) value = finish_sum(table, row, value);
  for (int64_t copy = 0; copy < copies; ++copy) {
    float* to = out + (token * copies + copy) * width + input;
    if constexpr (kWide) {
      *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
    } else {
      for (int i = 0; i < 4 && input + i < width; ++i) to[i] = values[i];
    }
  }
}

constexpr int64_t kMostGridY = 65535;

}  // namespace

void embed(const Context& context, const Weight& table, const int32_t* ids, int64_t tokens, int64_t copies,
           float* out) {
  if (context.plans()) return;
  const bool wide = wide_loads_serve(table) && aligned_to(out, 16);
  const int64_t width = table.inputs;
  with_format(table.format, [&](auto tag) {
    constexpr WeightFormat kFormat = decltype(tag)::kValue;
    for (int64_t first = 0; first < tokens; first += kMostGridY) {
      const dim3 grid(static_cast<unsigned>((width + 4 * kEmbedThreads - 1) / (4 * kEmbedThreads)),
                      static_cast<unsigned>(tokens - first < kMostGridY ? tokens - first : kMostGridY));
      float* to = out + first * copies * width;
      if (wide) {
        launch_following(context, embed_rows<kFormat, true>, grid, dim3(kEmbedThreads), 0, table, ids + first, copies,
                         to);
      } else {
        launch_following(context, embed_rows<kFormat, false>, grid, dim3(kEmbedThreads), 0, table, ids + first, copies,
                         to);
      }
      TANDEM_CUDA_LAUNCHED("embed_rows");
    }
  });
}

}  // namespace tandem::ops::cuda
