// Products of many columns with BF16 inputs: everything becomes BF16, then a product of BF16 matrices.
//
// Cost beside the product: inputs are read and written once (6 bytes each), and weights that are not BF16 are written
// and read again (4 bytes each), slice by slice, so that a slice is still in the second-level cache when it is read.
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_decode.cuh"
#include "ops/cuda/dense_mma.cuh"
#include "ops/cuda/dense_paths.h"

namespace tandem::ops::cuda::dense {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kSliceWeights = int64_t{1} << 25;    // 64 MiB of BF16
constexpr int kLaneTileRows = numeric::kLaneTileRows;  // divides a slice's first row

__global__ void __launch_bounds__(kThreads)
    round_inputs(const float4* __restrict__ x, int64_t fours, uint2* __restrict__ out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= fours) return;
  const float4 four = x[i];
  out[i] = make_uint2(pack_bf16(four.x, four.y), pack_bf16(four.z, four.w));
}

// Decoders of a slice. Block and group scales are multiplied in and the result rounded; those of rows and tensors are
// left to the sums.
struct Slice {
  Weight w;
  int64_t first_row = 0;
  int64_t rows = 0;
  uint16_t* out = nullptr;  // [rows, inputs]
};

// Eight inputs a thread, of any format.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) decode_eights(Slice slice) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t eights = slice.w.inputs / 8;
  if (i >= slice.rows * eights) return;
  const int64_t row = i / eights;
  const int64_t input = (i - row * eights) * 8;
  float low[4];
  float high[4];
  decode_four<kFormat>(slice.w, slice.first_row + row, input, low);
  decode_four<kFormat>(slice.w, slice.first_row + row, input + 4, high);
  reinterpret_cast<uint4*>(slice.out)[i] = make_uint4(pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]),
                                                      pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3]));
}

// Two pairs that hold inputs i and i + n, i + 1 and i + n + 1: as i and i + 1, i + n and i + n + 1.
__device__ inline uint2 in_order(uint32_t first, uint32_t second) {
  return make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
}

__device__ inline uint32_t scaled_pair(uint32_t pair, float scale) {
  return pack_bf16(bf16_bits_to_float(pair & 0xffff) * scale, __uint_as_float(pair & 0xffff0000) * scale);
}

// A block of 16 inputs a thread.
__global__ void __launch_bounds__(kThreads) decode_nvfp4(Slice slice) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t blocks = slice.w.inputs / 16;
  if (i >= slice.rows * blocks) return;
  // Codes as they lie: in lanes' order a unit's 16 rows follow each other.
  const int64_t from = slice.first_row * blocks + i;
  const float scale = e4m3_to_float(static_cast<const uint8_t*>(slice.w.scales)[from]);
  const uint32_t scales = pack_bf16(scale, scale);
  const auto scaled = [&](uint32_t pair) { return multiply_pairs(multiply_pairs(pair, power_pair(126)), scales); };
  auto* out = reinterpret_cast<uint4*>(slice.out) + 2 * i;
  if (slice.w.lane_order) {
    const int64_t row = i / 8 / kLaneTileRows / (blocks / 8) * kLaneTileRows + i / 8 % kLaneTileRows;
    const int64_t unit = i / 8 / kLaneTileRows % (blocks / 8);
    out = reinterpret_cast<uint4*>(slice.out) + 2 * (row * blocks + unit * 8 + i % 8);
    const auto block = static_cast<int>(from % 8);
    const uint32_t* words = static_cast<const uint32_t*>(slice.w.data) + from / 8 * numeric::kLaneUnitWords + block / 2;
    uint2 fours[4];
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const uint32_t word = words[4 * lane];
      fours[lane] = block % 2 == 0 ? make_uint2(e2m1_lane_pair<0>(word), e2m1_lane_pair<1>(word))
                                   : make_uint2(e2m1_lane_pair<2>(word), e2m1_lane_pair<3>(word));
      fours[lane] = make_uint2(scaled(fours[lane].x), scaled(fours[lane].y));
    }
    out[0] = make_uint4(fours[0].x, fours[0].y, fours[1].x, fours[1].y);
    out[1] = make_uint4(fours[2].x, fours[2].y, fours[3].x, fours[3].y);
    return;
  }
  const uint2 codes = static_cast<const uint2*>(slice.w.data)[from];
  const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    uint32_t pairs[4] = {e2m1_pair<0>(words[j]), e2m1_pair<1>(words[j]), e2m1_pair<0>(words[j] >> 8),
                         e2m1_pair<1>(words[j] >> 8)};
#pragma unroll
    for (uint32_t& pair : pairs) pair = scaled(pair);
    const uint2 first = in_order(pairs[0], pairs[1]);
    const uint2 second = in_order(pairs[2], pairs[3]);
    out[j] = make_uint4(first.x, second.x, first.y, second.y);
  }
}

// Sixteen inputs a thread, of FP8 or eight-bit integers.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) decode_bytes(Slice slice) {
  const Weight& w = slice.w;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t each = w.inputs / 16;
  if (i >= slice.rows * each) return;
  const int64_t row = slice.first_row + i / each;
  const int64_t input = i % each * 16;
  const int64_t stride = kFormat == WeightFormat::kInt8 ? (w.inputs + 127) / 128 * 8 : each;
  const uint4 codes = static_cast<const uint4*>(w.data)[row * stride + input / 16];
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  float scale = 1.0F;
  if constexpr (kFormat == WeightFormat::kFp8Block) scale = fp8_block_scale(w, row, input);
  if constexpr (kFormat == WeightFormat::kInt8) {
    scale = load_scale(w.scales, w.scale_type, row * (w.inputs / w.group) + input / w.group);
  }
  uint2 fours[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if constexpr (kFormat == WeightFormat::kInt8) {
      fours[j] = in_order(int8_pair(words[j]), int8_pair(words[j] >> 8));
    } else {
      fours[j] = in_order(e4m3_pair(words[j] << 8), e4m3_pair(words[j]));
    }
    if constexpr (kFormat != WeightFormat::kFp8Row) {
      fours[j] = make_uint2(scaled_pair(fours[j].x, scale), scaled_pair(fours[j].y, scale));
    }
  }
  auto* out = reinterpret_cast<uint4*>(slice.out) + 2 * i;
  out[0] = make_uint4(fours[0].x, fours[0].y, fours[1].x, fours[1].y);
  out[1] = make_uint4(fours[2].x, fours[2].y, fours[3].x, fours[3].y);
}

// Four words of a unit a thread: inputs 16 j + 4 l … of eight j.
template <typename Pairs>
__global__ void __launch_bounds__(kThreads) decode_words(Slice slice) {
  const Weight& w = slice.w;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t units = (w.inputs + 127) / 128;
  if (i >= slice.rows * units * 4) return;
  const int lane = static_cast<int>(i % 4);
  const int64_t row = i / 4 / units;
  const int64_t unit = i / 4 % units;
  const auto* codes =
      static_cast<const uint8_t*>(w.data) + ((slice.first_row + row) * units + unit) * (16 * Pairs::kBits);
  uint4 words = {};
  if constexpr (Pairs::kBits == 4) {
    words = reinterpret_cast<const uint4*>(codes)[lane];
  } else {
    const uint2 low = reinterpret_cast<const uint2*>(codes)[lane];
    words = make_uint4(low.x, low.y, reinterpret_cast<const uint32_t*>(codes + 32)[lane], 0);
  }
  const Pairs pairs(words);
  const int64_t first_scale = (slice.first_row + row) * (w.inputs / w.group);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int64_t input = unit * 128 + 16 * j + 4 * lane;
    if (input >= w.inputs) return;
    const float scale = load_scale(w.scales, w.scale_type, first_scale + input / w.group);
    *reinterpret_cast<uint2*>(slice.out + row * w.inputs + input) =
        make_uint2(scaled_pair(pairs.get(0, j), scale), scaled_pair(pairs.get(1, j), scale));
  }
}

// Likewise of a matrix in lanes' order (numeric/int_lanes.h).
template <int kBits, int kPair>
__device__ inline void decode_lane_pairs(const Weight& w, const uint4& words, int64_t row, int64_t input,
                                         uint16_t* out) {
  if constexpr (kPair < 16) {
    constexpr uint32_t kOnes = kIntLaneOnes<kBits, kPair>;
    // 2 v 2^(place - 134), exactly.
    const uint32_t pair = subtract_pairs(int_lane_pair<kBits, kPair>(words), kOnes);
    constexpr float kRest = kBits == 4 ? 8.0F : static_cast<float>(1 << (7 - numeric::int_place<kBits>(kPair)));
    const float scale = load_scale(w.scales, w.scale_type, group_place(w, row, input / w.group));
    const float low = bf16_bits_to_float(pair & 0xffff) * 0x1p126F * kRest * scale;
    const float high = __uint_as_float(pair & 0xffff0000) * 0x1p126F * kRest * scale;
    *reinterpret_cast<uint32_t*>(out + kPair / 2 * 16 + kPair % 2 * 2) = pack_bf16(low, high);
    decode_lane_pairs<kBits, kPair + 1>(w, words, row, input + kPair % 2 * 16, out);
  }
}
template <int kBits>
__global__ void __launch_bounds__(kThreads) decode_lane_words(Slice slice) {
  const Weight& w = slice.w;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t units = w.inputs / 128;
  if (i >= slice.rows * units * 4) return;
  const int lane = static_cast<int>(i % 4);
  const int64_t row = i / 4 / kLaneTileRows / units * kLaneTileRows + i / 4 % kLaneTileRows;
  const int64_t unit = i / 4 / kLaneTileRows % units;
  const auto* codes = static_cast<const uint8_t*>(w.data) + (slice.first_row * units + i / 4) * (16 * kBits);
  uint4 words = {};
  if constexpr (kBits == 4) {
    words = reinterpret_cast<const uint4*>(codes)[lane];
  } else {
    const uint2 two = reinterpret_cast<const uint2*>(codes)[lane];
    words = make_uint4(two.x, two.y, reinterpret_cast<const uint32_t*>(codes)[8 + lane], 0);
  }
  const int64_t input = unit * 128 + 4 * lane;
  decode_lane_pairs<kBits, 0>(w, words, slice.first_row + row, input, slice.out + row * w.inputs + input);
}

__global__ void __launch_bounds__(kThreads) widen_scales(Weight w, float* __restrict__ out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < w.rows) out[row] = load_scale(w.scales, w.scale_type, row);
}

// y [tokens, rows] times the rows' factors, where the library's product cannot do it: y once more read and written.
__global__ void __launch_bounds__(kThreads)
    scale_rows(const float* __restrict__ factors, int64_t rows, int64_t tokens, float* __restrict__ y) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const float factor = factors[row];
  for (int64_t token = blockIdx.y; token < tokens; token += gridDim.y) y[token * rows + row] *= factor;
}

unsigned blocks_of(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

void launch_decode(const Context& context, const Slice& slice) {
  const Weight& w = slice.w;
  const int64_t weights = slice.rows * w.inputs;
  const auto launch = [&](void (*kernel)(Slice), int64_t threads) {
    kernel<<<blocks_of(threads), kThreads, 0, context.stream>>>(slice);
    TANDEM_CUDA_LAUNCHED("decode_slice");
  };
  const bool sixteens = w.inputs % 16 == 0;
  switch (w.format) {
    case WeightFormat::kNvfp4:
      return launch(decode_nvfp4, weights / 16);
    case WeightFormat::kFp8Row:
    case WeightFormat::kFp8Tensor:
      return sixteens ? launch(decode_bytes<WeightFormat::kFp8Row>, weights / 16)
                      : launch(decode_eights<WeightFormat::kFp8Row>, weights / 8);
    case WeightFormat::kFp8Block:
      return sixteens ? launch(decode_bytes<WeightFormat::kFp8Block>, weights / 16)
                      : launch(decode_eights<WeightFormat::kFp8Block>, weights / 8);
    case WeightFormat::kInt8:
      return launch(decode_bytes<WeightFormat::kInt8>, weights / 16);
    case WeightFormat::kInt4:
      if (w.lane_order) return launch(decode_lane_words<4>, slice.rows * (w.inputs / 128) * 4);
      return launch(decode_words<Int4Pairs>, slice.rows * ((w.inputs + 127) / 128) * 4);
    case WeightFormat::kInt3:
      if (w.lane_order) return launch(decode_lane_words<3>, slice.rows * (w.inputs / 128) * 4);
      return launch(decode_words<Int3Pairs>, slice.rows * ((w.inputs + 127) / 128) * 4);
    default:
      return;
  }
}

int64_t slice_rows(const Weight& w) {
  const int64_t rows = kSliceWeights / w.inputs / 128 * 128;
  return rows < 128 ? 128 : rows < w.rows ? rows : w.rows;
}

// A factor of the whole tensor that cuBLASLt multiplies sums by. A divisor is inverted here, and here alone: that
// changes a sum by less than 2^-23 of it, far below what its order does.
float tensor_factor(const Weight& w) {
  if (w.format == WeightFormat::kFp8Tensor) return w.scale;
  if (w.format != WeightFormat::kNvfp4) return 1.0F;
  return w.divides ? 1.0F / w.scale : w.scale;
}

// The sums over the inputs from `begin` to `end`, weights of the slice in BF16.
Bf16Product part_of(const Product& p, const uint16_t* x, const uint16_t* slice, int64_t first_row, int64_t rows,
                    int part, int parts) {
  const int64_t inputs = p.w.inputs / parts;
  Bf16Product out;
  out.x = x + part * inputs;
  out.tokens = p.tokens;
  out.x_stride = p.w.inputs;
  out.w = slice + part * inputs;
  out.rows = rows;
  out.w_stride = p.w.inputs;
  out.inputs = inputs;
  out.d = (part == 0 ? p.y : p.upper) + first_row;
  out.d_stride = p.w.rows;
  out.factor = tensor_factor(p.w);
  return out;
}

// A product in slices of rows, each in one or two parts of the inputs.
struct Plan {
  int64_t each = 0;  // rows of a slice
  int parts = 1;
  const uint16_t* x = nullptr;        // BF16 inputs
  const uint16_t* weights = nullptr;  // of the whole matrix, or of the slice in hand
  const float* row_factors = nullptr;

  Bf16Product product(const Product& p, int64_t first, int part) const {
    const int64_t rows = p.w.rows - first < each ? p.w.rows - first : each;
    Bf16Product out = part_of(p, x, weights, first, rows, part, parts);
    if (row_factors != nullptr) out.row_factors = row_factors + first;
    return out;
  }
};

bool library_has_all(const Product& p, const Plan& plan) {
  for (int64_t first = 0; first < p.w.rows; first += plan.each) {
    for (int part = 0; part < plan.parts; ++part) {
      if (!library_serves(plan.product(p, first, part))) return false;
    }
  }
  return true;
}

void launch_scale_rows(const Context& context, const Product& p, const float* factors) {
  const int64_t lines = p.tokens < 256 ? p.tokens : 256;
  for (float* y : {p.y, p.upper}) {
    if (y == nullptr) continue;
    const dim3 grid(blocks_of(p.w.rows), static_cast<unsigned>(lines));
    scale_rows<<<grid, kThreads, 0, context.stream>>>(factors, p.w.rows, p.tokens, y);
    TANDEM_CUDA_LAUNCHED("scale_rows");
  }
}

}  // namespace

bool many_columns_serve(const Product& p) {
  const Weight& w = p.w;
  if (w.format == WeightFormat::kF32 || w.format == WeightFormat::kF16) return false;  // would lose digits
  return w.inputs % (p.upper != nullptr ? 16 : 8) == 0 && aligned_to(w.data, 16) && aligned_to(p.x, 16);
}

void many_columns_linear(const Context& context, const Product& p, bool library) {
  const Weight& w = p.w;
  const bool plain = w.format == WeightFormat::kBF16;
  const bool row_scales = w.format == WeightFormat::kFp8Row;
  library = library && dense_library_loaded();

  const Scratch::Scope scope(context.scratch);
  Plan plan{.each = plain ? w.rows : slice_rows(w), .parts = p.upper != nullptr ? 2 : 1};
  auto* x = context.scratch.take<uint16_t>(p.tokens * w.inputs);
  auto* slice = plain ? nullptr : context.scratch.take<uint16_t>(plan.each * w.inputs);
  auto* workspace = library ? context.scratch.take<std::byte>(library_workspace()) : nullptr;
  auto* factors = library && row_scales ? context.scratch.take<float>(w.rows) : nullptr;
  if (library) prepare_library();
  if (context.plans()) return;

  plan.x = x;
  plan.weights = plain ? static_cast<const uint16_t*>(w.data) : slice;
  plan.row_factors = factors;
  const bool by_rows = factors != nullptr && library_has_all(p, plan);
  if (!by_rows) plan.row_factors = nullptr;
  library = library && (by_rows || library_has_all(p, plan));

  const int64_t fours = p.tokens * w.inputs / 4;
  round_inputs<<<blocks_of(fours), kThreads, 0, context.stream>>>(reinterpret_cast<const float4*>(p.x), fours,
                                                                  reinterpret_cast<uint2*>(x));
  TANDEM_CUDA_LAUNCHED("round_inputs");
  if (library && factors != nullptr) {
    widen_scales<<<blocks_of(w.rows), kThreads, 0, context.stream>>>(w, factors);
    TANDEM_CUDA_LAUNCHED("widen_scales");
  }
  for (int64_t first = 0; first < w.rows; first += plan.each) {
    if (!plain) launch_decode(context, {w, first, w.rows - first < plan.each ? w.rows - first : plan.each, slice});
    for (int part = 0; part < plan.parts; ++part) {
      const Bf16Product product = plan.product(p, first, part);
      if (library) {
        library_product(context, product, workspace);
      } else {
        tile_product(context, product, w, first);
      }
    }
  }
  if (library && factors != nullptr && !by_rows) launch_scale_rows(context, p, factors);
}

}  // namespace tandem::ops::cuda::dense
