// Rows of a column's projections on their way to queries, keys and values: norm, rotation, and their places in the
// pages.
//
// A row is a warp's. Lane l has dimensions 4 l + {0 … 3} of each 128; rows begin at multiples of 16 bytes, and what a
// row has beyond its dimensions is zeros.
#pragma once

#include <cmath>
#include <cuda_bf16.h>

#include "numeric/int8_kv.h"
#include "ops/cuda/attention_pages.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

inline constexpr int kMostDim = 256;
inline constexpr int kMostPairs = kMostDim / 2;

// The inverse frequencies, as the host operations round them.
struct RotaryTable {
  int pairs = 0;
  float inverse[kMostPairs] = {};

  RotaryTable() = default;
  explicit RotaryTable(const Rotary& rotary) : pairs(static_cast<int>(rotary.dims / 2)) {
    if (pairs > kMostPairs) base::internal_error("cuda", "{} rotary dimensions are more than 256", rotary.dims);
    for (int i = 0; i < pairs; ++i) {
      inverse[i] = 1.0F / static_cast<float>(
                              std::pow(rotary.theta, static_cast<double>(2 * i) / static_cast<double>(rotary.dims)));
    }
  }
};

#ifdef __CUDACC__
inline constexpr int kRowParts = kMostDim / 128;
using Row = float4[kRowParts];

__device__ __forceinline__ int row_place(int part) {
  return 128 * part + 4 * (static_cast<int>(threadIdx.x) % 32);
}
__device__ __forceinline__ void load_row(Row& row, const float* from, int dim) {
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) row[i] = row_place(i) < dim ? load4(from + row_place(i)) : float4{0, 0, 0, 0};
}

// Cosine and sine of pair `i` at a position.
__device__ inline float2 angle_of(const RotaryTable& rotary, int i, int64_t position) {
  float sine = 0;
  float cosine = 0;
  sincosf(static_cast<float>(position) * rotary.inverse[i], &sine, &cosine);
  return make_float2(cosine, sine);
}
// Of all pairs, in shared memory, the warp's own. Needs nothing that a kernel before wrote.
__device__ inline void make_angles(const RotaryTable& rotary, int64_t position, float2* angles) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 32; i < rotary.pairs; i += 32) {
    angles[i] = angle_of(rotary, i, position);
  }
}

// row = row / rms(row) * (1 + weight).
__device__ __forceinline__ void norm_row(Row& row, int dim, const Row& weight, float eps) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
    const float4 x = row[i];
    squares = fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, squares))));
  }
  const float scale = inverse_rms(warp_sum(squares), dim, eps);
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
    const float4 x = row[i];
    row[i] = {(x.x * scale) * (1.0F + weight[i].x), (x.y * scale) * (1.0F + weight[i].y),
              (x.z * scale) * (1.0F + weight[i].z), (x.w * scale) * (1.0F + weight[i].w)};
  }
}

// Dimension i < pairs and its partner pairs + i are a plane that turns by angle i.
__device__ __forceinline__ float turned(float x, float partner, float2 angle, bool lower) {
  return lower ? x * angle.x - partner * angle.y : x * angle.x + partner * angle.y;
}
// Where lanes exchange their dimensions as they are.
__host__ __device__ constexpr bool rotates_by_lanes(int pairs) {
  return pairs % 4 == 0 && pairs <= 64;
}
__device__ __forceinline__ void rotate_by_lanes(Row& row, int pairs, const float2* angles) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool lower = 4 * lane < pairs;
  const int other = lower ? lane + pairs / 4 : lane - pairs / 4;
  const float4 partner = {__shfl_sync(kWholeWarp, row[0].x, other), __shfl_sync(kWholeWarp, row[0].y, other),
                          __shfl_sync(kWholeWarp, row[0].z, other), __shfl_sync(kWholeWarp, row[0].w, other)};
  if (4 * lane >= 2 * pairs) return;
  const float2* own = angles + 4 * (lower ? lane : other);
  row[0] = {turned(row[0].x, partner.x, own[0], lower), turned(row[0].y, partner.y, own[1], lower),
            turned(row[0].z, partner.z, own[2], lower), turned(row[0].w, partner.w, own[3], lower)};
}
// Any number of pairs, by way of shared memory for a row of the warp's own.
__device__ inline void rotate_row(Row& row, int pairs, const float2* angles, float* place) {
  if (rotates_by_lanes(pairs)) return rotate_by_lanes(row, pairs, angles);
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) store4(place + row_place(i), row[i]);
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x) % 32; i < pairs; i += 32) {
    const float a = place[i];
    const float b = place[pairs + i];
    place[i] = turned(a, b, angles[i], true);
    place[pairs + i] = turned(b, a, angles[i], false);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) row[i] = load4(place + row_place(i));
  __syncwarp();
}

__device__ __forceinline__ uint2 packed_bf16(float4 x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  return make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
}

// As FP32 or BF16.
__device__ __forceinline__ void store_row(std::byte* to, const Row& row, int dim, KvType type) {
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
    if (row_place(i) >= dim) continue;
    if (type == KvType::kF32) {
      store4(reinterpret_cast<float*>(to) + row_place(i), row[i]);
    } else {
      *reinterpret_cast<uint2*>(to + 2 * row_place(i)) = packed_bf16(row[i]);
    }
  }
}
// numeric/int8_kv.h, two groups at a time: sixteen lanes have one. Unless `stored`, all but that.
__device__ inline void store_codes(std::byte* to, uint16_t* scales, const Row& row, int dim, bool stored) {
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
    const auto magnitude = [](float x) { return __float_as_uint(x) & 0x7FFFFFFFu; };
    const float4 x = row[i];
    uint32_t most = max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
      most = max(most, __shfl_xor_sync(kWholeWarp, most, distance));
    }
    const uint16_t scale = numeric::int8_kv_scale(most);
    const bool coded = scale != 0 && scale != numeric::kInt8KvFaultyScale;
    const float unit = numeric::f16_to_float(scale);
    const auto code = [&](float v) {
      return static_cast<uint32_t>(coded ? max(-127, min(127, __float2int_rn(v / unit))) : 0) & 0xFF;
    };
    const uint32_t codes = code(x.x) | code(x.y) << 8 | code(x.z) << 16 | code(x.w) << 24;
    if (!stored || row_place(i) >= dim) continue;
    *reinterpret_cast<uint32_t*>(to + row_place(i)) = codes;
    if (row_place(i) % kScaleGroup == 0) scales[row_place(i) / kScaleGroup] = scale;
  }
}

// Where a token's key or value lies in its page; nowhere without a table.
struct OwnRow {
  std::byte* row = nullptr;
  uint16_t* scales = nullptr;

  __device__ OwnRow(const KvView& kv, const int32_t* block_table, int head, int64_t position, bool value) {
    if (block_table == nullptr) return;
    std::byte* page = kv.page(block_table, position);
    row = page + kv.key_offset(head, position) + (value ? kv.values : 0);
    scales = reinterpret_cast<uint16_t*>(page + kv.scale_offset(head, position) + (value ? kv.value_scales() : 0));
  }
  __device__ void store(const KvView& kv, const Row& values, bool stored) const {
    if (kv.type == KvType::kInt8) {
      store_codes(row, scales, values, kv.head_dim, stored);
    } else if (stored) {
      store_row(row, values, kv.head_dim, kv.type);
    }
  }
};
#endif

}  // namespace tandem::ops::cuda
