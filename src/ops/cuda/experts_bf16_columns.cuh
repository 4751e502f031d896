// What products of experts in BF16 (experts_bf16_kernel.cuh) agree on with those who make their columns: sizes, the
// order of inputs, and rounding to what the canonical arithmetic's activations are.
#pragma once

#include "ops/cuda/experts_codebooks.cuh"
#include "ops/cuda/experts_quantise.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace tandem::ops::cuda::expert::bf16 {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kColumns = kMostColumnsOfGroup;
inline constexpr int kEights = kColumns / 8;
inline constexpr int kStep = 64;  // inputs of a stage
inline constexpr int kAhead = 2;  // stages that are on their way
// Products of warp groups may still read a stage while the one behind it begins.
inline constexpr int kMostStages = kAhead + 2;
inline constexpr int kStages = kWarpgroupProducts ? kMostStages : kAhead + 1;
inline constexpr int kTile = kColumns * kStep * 2;  // bytes of a stage's columns

// Sums of gate and up in shared memory: [columns][2][kInnerRows] and padding, so that neither warps that write
// rows of eight columns nor those that read 16 of each column meet a bank twice.
inline constexpr int kInnerRows = kWarps / 2 * 32;  // of gate and of up, of a block
inline constexpr int kInnerStride = 2 * kInnerRows + 4;
inline constexpr int kInnerBytes = kColumns * kInnerStride * 4;

// How a column lies in memory: BF16 [inputs], each 32 inputs in the order of the matrix's format.
enum class Order : uint8_t { kNvfp4, kNatural, kFourApart, kNibbles };
Order order_of(numeric::ExpertFormat format);

struct Product;
// Products of the formats with activations of 8 bits.
void launch_blocks(const Context& context, numeric::ExpertFormat format, bool gate_up, const Product& product);

// What becomes of SwiGLU of gate and up.
enum class Inner : uint8_t {
  kFloats,  // FP32, for a column's own scale of down's inputs, which needs all of them
  kNvfp4,   // the values of quantised inputs, which BF16 holds exactly
  kRounded  // BF16
};

struct Product {
  const std::byte* records = nullptr;
  int64_t record_bytes = 0;
  int64_t offsets[2] = {};         // of gate and up in a record, or of down
  int64_t scales_offsets[2] = {};  // FP8
  int64_t rows = 0;
  int64_t inputs = 0;
  const uint16_t* columns[2] = {};  // [tokens or slots, inputs]; up's are unused where they would equal gate's
  bool by_token = false;
  const float* scalars = nullptr;
  int64_t scalars_each = 0;
  int which = 0;                        // the first matrix: gate or down
  bool quantised = false;               // NVFP4 columns are values of codes, to be multiplied by their input scales
  const float* input_scales = nullptr;  // [tokens or slots], where each column has its own
  Grouping grouping;
  int64_t top_k = 0;
  int passes = 1;  // rows of a block, in those that it computes at once
  // Gate and up:
  Inner inner = Inner::kRounded;
  Order inner_order = Order::kNatural;
  uint16_t* inner_columns = nullptr;  // [slots, rows]
  float* inner_floats = nullptr;      // [slots, rows]
  int32_t* faults = nullptr;
  int32_t fault = 0;
  // Down:
  float* out = nullptr;  // [slots, rows]
};

// Rounds to steps of 2^-kBits of x's power of two, or of 2^kLowest where that is more; ties to even.
template <int kBits, int kLowest>
__device__ inline float round_to_bits(float x) {
  const uint32_t power = max(__float_as_uint(x) & kInfinityBits, static_cast<uint32_t>(kLowest + 127) << 23);
  const float large = __uint_as_float(power + (static_cast<uint32_t>(23 - kBits) << 23 | 0x400000U));
  return (x + large) - large;
}

// Input scale and scale of a block as the canonical arithmetic has them, with products by reciprocals where that
// divides: a value may land on the other side of a rounding.
struct BlockScale {
  float t;        // E4M3 numbers: T
  float inverse;  // 1 / (T * input scale), 0 where T is
  __device__ BlockScale(uint32_t largest, float input_scale, float by_six) {
    t = 0.0F;
    inverse = 0.0F;
    if (largest >= kInfinityBits) return;
    t = round_to_bits<3, -6>(fminf(__uint_as_float(largest) * by_six, 448.0F));
    if (t > 0.0F) inverse = __fdividef(1.0F, t * input_scale);
  }
  // E2M1(x / (T * input scale)) * T: at most six significant bits.
  __device__ float value(float x) const { return round_to_bits<1, 0>(fminf(fmaxf(x * inverse, -6.0F), 6.0F)) * t; }
};
__device__ inline float reciprocal_of_six(float input_scale) {
  return __fdiv_rn(1.0F, 6.0F * input_scale);
}

// Sixteen inputs of a column from 16 * block on. The 32 inputs of two blocks are four pieces of 16 bytes, in which lane
// t of a product finds its two inputs of each as word t.
__device__ inline void store_sixteen(Order order, const float (&x)[16], int block, uint16_t* column) {
  const auto pair = [&](int low, int high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x[low], x[high]);
    return reinterpret_cast<const uint32_t&>(both);
  };
  auto* pieces = reinterpret_cast<uint4*>(column) + block / 2 * 4;
  const int odd = block % 2;
  switch (order) {
    case Order::kNvfp4:  // lane t has inputs 8 t to 8 t + 7, of which four codes apart make a pair
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        reinterpret_cast<uint2*>(pieces + i)[odd] = make_uint2(pair(i, i + 4), pair(i + 8, i + 12));
      }
      return;
    case Order::kNatural:
      pieces[2 * odd] = make_uint4(pair(0, 2), pair(4, 6), pair(8, 10), pair(12, 14));
      pieces[2 * odd + 1] = make_uint4(pair(1, 3), pair(5, 7), pair(9, 11), pair(13, 15));
      return;
    case Order::kFourApart:
      pieces[2 * odd] = make_uint4(pair(0, 8), pair(1, 9), pair(2, 10), pair(3, 11));
      pieces[2 * odd + 1] = make_uint4(pair(4, 12), pair(5, 13), pair(6, 14), pair(7, 15));
      return;
    case Order::kNibbles:
      pieces[odd] = make_uint4(pair(0, 1), pair(2, 3), pair(4, 5), pair(6, 7));
      pieces[odd + 2] = make_uint4(pair(8, 9), pair(10, 11), pair(12, 13), pair(14, 15));
      return;
  }
}
__device__ inline uint32_t largest_of_sixteen(const float (&x)[16]) {
  uint32_t largest = 0;
#pragma unroll
  for (const float value : x) largest = max(largest, magnitude_bits(value));
  return largest;
}

}  // namespace tandem::ops::cuda::expert::bf16
