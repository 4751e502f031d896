// Products of many columns of routed experts in BF16: the faster path beside the canonical one (experts_many), within a
// tolerance of it (docs/architecture.md, "Numbers").
//
// A block has a group of up to 64 columns of one expert and, by warp, 32 rows: four warps have gate's and four the same
// of up's, or all have down's. Each weight is decoded once for all columns of the group, in the registers that mma.sync
// takes it from; columns are BF16 and come through stages of shared memory. SwiGLU and the quantisation of down's
// inputs follow at once.
//
// What bounds it (Flash-Next, 40 columns an expert): a unit of 16 rows x 64 inputs costs a warp 20 products, which hold
// the tensor cores for 128 cycles of a scheduler, and about 85 operations to decode, half of them on the integer pipe,
// which takes two cycles each; and 576 bytes of memory. The three are nearly even.
//
// Lane 4 g + t of a product has rows g and g + 8 of the weights, four of 16 inputs each (dense_mma.cuh). Which rows and
// inputs those are is free: here rows 4 g to 4 g + 3 of 32, in two products, which are four neighbouring words of a
// unit, and whose sums are four neighbouring outputs; and of 32 inputs those that lane t's words hold.
#pragma once

#include "ops/cuda/experts_bf16_steps.cuh"

namespace tandem::ops::cuda::expert::bf16 {

__device__ inline void clear(Sums& sums) {
#pragma unroll
  for (int i = 0; i < 2 * kEights; ++i) {
    for (float& value : sums[i / kEights][i % kEights]) value = 0.0F;
  }
}
// A lane's four rows of column 8 n + 2 t + j.
__device__ inline float4 rows_of(const Sums& sums, int n, int j) {
  return make_float4(sums[0][n][j], sums[0][n][2 + j], sums[1][n][j], sums[1][n][2 + j]);
}

__device__ inline void keep_sums(const Sums& sums, int eights, float* kept) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float* to = kept + lane % 4 * 2 * kInnerStride + warp * 32 + lane / 4 * 4;  // up's warps come last
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    if (n >= eights) break;
    for (int j = 0; j < 2; ++j) {
      *reinterpret_cast<float4*>(to + (8 * n + j) * kInnerStride) = rows_of(sums, n, j);
    }
  }
}

// SwiGLU of these into down's inputs, a block of 16 a thread.
__device__ inline void finish_inner(const Product& product, const Group& group, const float* kept,
                                    const float (&factors)[2][kColumns], int64_t first_row) {
  const float input_scale =
      product.inner == Inner::kNvfp4 ? product.scalars[group.expert * product.scalars_each + 5] : 1.0F;
  const float by_six = reciprocal_of_six(input_scale);
  const int blocks = static_cast<int>(min(product.rows - first_row, int64_t{kInnerRows})) / 16;
  for (int i = static_cast<int>(threadIdx.x); i < blocks * group.count; i += kThreads) {
    const int column = i % group.count;
    const int block = i / group.count;
    const auto* gate = reinterpret_cast<const float4*>(kept + column * kInnerStride + 16 * block);
    const auto* up = gate + kInnerRows / 4;
    const float gate_factor = factors[0][column];
    const float up_factor = factors[1][column];
    float h[16];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float4 g = gate[q];
      const float4 u = up[q];
      h[4 * q] = swiglu(g.x * gate_factor, u.x * up_factor);
      h[4 * q + 1] = swiglu(g.y * gate_factor, u.y * up_factor);
      h[4 * q + 2] = swiglu(g.z * gate_factor, u.z * up_factor);
      h[4 * q + 3] = swiglu(g.w * gate_factor, u.w * up_factor);
    }
    const int64_t at = (group.first + column) * product.rows + first_row;
    if (product.inner == Inner::kFloats) {
      auto* to = reinterpret_cast<float4*>(product.inner_floats + at) + 4 * block;
#pragma unroll
      for (int q = 0; q < 4; ++q) to[q] = make_float4(h[4 * q], h[4 * q + 1], h[4 * q + 2], h[4 * q + 3]);
      continue;
    }
    if (product.inner == Inner::kNvfp4) {
      const uint32_t largest = largest_of_sixteen(h);
      const BlockScale scale(largest, input_scale, by_six);
#pragma unroll
      for (float& value : h) value = scale.value(value);
      if (largest >= kInfinityBits) {
        mark_fault(product.faults, product.grouping.order[group.first + column] / product.top_k, product.fault);
      }
    }
    store_sixteen(product.inner_order, h, block, product.inner_columns + at);
  }
}

__device__ inline void store_rows(const Product& product, const Group& group, const Sums& sums, const float* factors,
                                  int eights, int64_t first_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = first_row + threadIdx.x / 32 * 32;
  if (row >= product.rows) return;
  float* to = product.out + int64_t{group.first} * product.rows + row + lane / 4 * 4;
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    if (n >= eights) break;
    for (int j = 0; j < 2; ++j) {
      const int column = 8 * n + lane % 4 * 2 + j;
      if (column >= group.count) continue;
      const float by = factors[column];
      const float4 rows = rows_of(sums, n, j);
      *reinterpret_cast<float4*>(to + column * product.rows) =
          make_float4(rows.x * by, rows.y * by, rows.z * by, rows.w * by);
    }
  }
}

// What sums of a column are multiplied by.
template <typename F>
__device__ inline float column_factor(const Product& product, int expert, int p, int32_t column) {
  if constexpr (std::is_same_v<F, Nvfp4>) {
    const float* scalars = product.scalars + expert * product.scalars_each;
    float by = scalars[product.which + p];
    if (product.quantised) {
      by *= product.input_scales != nullptr ? product.input_scales[column] : scalars[3 + product.which + p];
    }
    return by * dense::kNvfp4Unit;
  } else {
    return 1.0F;
  }
}

// A block's passes: gate's and up's sums go to `shared` when all copies there were read, down's to memory.
template <typename F, bool kGateUp, typename Steps>
__device__ inline void run_passes(const Product& product, const Group& group, const float* factors, int64_t first_row,
                                  int eights, std::byte* shared, const Steps& steps) {
  for (int pass = 0; pass < product.passes; ++pass) {
    Sums sums;
    clear(sums);
    steps(sums);
    if constexpr (kGateUp) {
      await_copies<0>();
      __syncthreads();
      keep_sums(sums, eights, reinterpret_cast<float*>(shared));
    } else {
      store_rows(product, group, sums, factors, eights, first_row);
      first_row += kWarps * 32;
    }
  }
}

// Block x: rows of gate and up, or of down, for group y.
template <typename F, bool kGateUp>
__global__ void __launch_bounds__(kThreads, 2)
    multiply(const __grid_constant__ Product product, const __grid_constant__ typename F::Codebook book) {
  follow();
  const Group group = product.grouping.groups[blockIdx.y];
  if (group.count == 0) return;
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ uint32_t columns[kColumns];
  __shared__ float factors[2][kColumns];
  if (threadIdx.x < kColumns) {
    // Columns that the group does not have repeat its last.
    const int slot = group.first + min(static_cast<int>(threadIdx.x), group.count - 1);
    const int32_t column = product.by_token ? product.grouping.order[slot] / static_cast<int32_t>(product.top_k) : slot;
    columns[threadIdx.x] = static_cast<uint32_t>(column) * static_cast<uint32_t>(product.inputs / 8);
    factors[0][threadIdx.x] = column_factor<F>(product, group.expert, 0, column);
    if (kGateUp) factors[1][threadIdx.x] = column_factor<F>(product, group.expert, 1, column);
  }
  bool same = true;
  if (kTiles<F, kGateUp> == 2 && product.columns[1] != nullptr) {
    const float* scalars = product.scalars + group.expert * product.scalars_each;
    same = __float_as_uint(scalars[3]) == __float_as_uint(scalars[4]);
  }
  constexpr int kBlockRows = kGateUp ? kInnerRows : kWarps * 32;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * product.passes * kBlockRows;
  const int eights = (group.count + 7) / 8;
  const auto tiles = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t weights = tiles + kStages * kTiles<F, kGateUp> * kTile;
  auto& table = *reinterpret_cast<typename F::Table*>(shared + kStages * kTiles<F, kGateUp> * kTile +
                                                      Layout<F>::kUnits * Layout<F>::kWeightBytes);
  if constexpr (kHasTable<F>) make_table<F>(book, table);
  __syncthreads();
  Copies<F, kGateUp> copies(product, group, columns, eights, same, first_row, tiles, weights);
  for (int s = 0; s < kAhead; ++s) copies.fetch();

  const auto warp = static_cast<int>(threadIdx.x) / 32;
  Stages<F, kGateUp> at{tiles + (kGateUp && !same && warp >= kWarps / 2 ? kTile : 0),
                        shared + kStages * kTiles<F, kGateUp> * kTile + warp * Layout<F>::kWarpBytes, table};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // Each number of columns has code of its own, to its end: sums must stay in the registers where products leave them.
  const auto run = [&](auto used) {
    run_passes<F, kGateUp>(product, group, factors[0], first_row, used, shared,
                           [&](Sums& sums) { add_warpgroup_steps<F, kGateUp, used>(sums, copies, at); });
  };
  // Block formats are bound by their decoders, and have fewer of them.
  constexpr bool kFew = !std::is_same_v<F, Nvfp4>;
  if (!kFew && eights <= 2) {
    run(std::integral_constant<int, kFew ? 4 : 2>());
  } else if (eights <= 4) {
    run(std::integral_constant<int, 4>());
  } else if (!kFew && eights == 5) {
    run(std::integral_constant<int, kFew ? 4 : 5>());
  } else if (eights <= 6) {
    run(std::integral_constant<int, 6>());
  } else if (!kFew && eights == 7) {
    run(std::integral_constant<int, kFew ? 4 : 7>());
  } else {
    run(std::integral_constant<int, 8>());
  }
#else
  run_passes<F, kGateUp>(product, group, factors[0], first_row, eights, shared,
                         [&](Sums& sums) { add_steps(sums, copies, at, eights); });
#endif
  if constexpr (kGateUp) {
    __syncthreads();
    finish_inner(product, group, reinterpret_cast<const float*>(shared), factors, first_row);
  }
}

template <typename F, bool kGateUp>
void launch(const Context& context, const Product& product) {
  constexpr int kBlockRows = kGateUp ? kInnerRows : kWarps * 32;
  static_assert(shared_bytes<F, kGateUp>(kAhead + 1) <= 96 << 10 && shared_bytes<F, kGateUp>(kMostStages) <= 112 << 10);
  const int shared = shared_bytes<F, kGateUp>(context.capability / 10 == 9 ? kMostStages : kAhead + 1);
  const int64_t blocks = base::ceil_div(product.rows, kBlockRows * product.passes);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(product.grouping.bound));
  allow_shared(multiply<F, kGateUp>, shared);
  launch_following(context, multiply<F, kGateUp>, grid, dim3(kThreads), static_cast<size_t>(shared), product,
                   codebook<F>());
}

}  // namespace tandem::ops::cuda::expert::bf16
