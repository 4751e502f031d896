// Products of at most eight columns with BF16 inputs: bound by reading the weights once.
//
// Work is cut three ways. A cluster of `splits` blocks has the same rows, each block a part of the inputs; a block's
// warps have two units of 128 inputs each (several times over where the inputs are very many); a warp goes over the
// block's rows in tiles of 16. So the inputs of all columns, rounded to BF16, stay in a warp's registers in the order
// of the tensor cores' operand, and what a warp does again and again is: 16-byte loads of codes, one tile ahead;
// decoding; 16 products of 16 rows x 8 columns x 16 inputs. Warps' sums meet in shared memory, blocks' sums through the
// cluster's; both are added in order of the inputs.
//
// Cost: about 5 us for the launch, the inputs, and the two meetings; then bytes at the card's rate of reading where a
// weight has a byte or more. Of four bits and less decoding bounds it: 2.2 to 2.7 instructions a weight and lane.
//
// The cuts follow from rows and inputs alone, and missing columns are zeros: neither the cost nor a column's bits
// depend on the number of columns.
#include <algorithm>
#include <array>
#include <cooperative_groups.h>
#include <map>
#include <mutex>

#include "ops/cuda/dense_decode.cuh"
#include "ops/cuda/dense_mma.cuh"
#include "ops/cuda/dense_paths.h"
#include "ops/cuda/follow.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda::dense {

namespace {

constexpr int kUnit = 128;      // inputs
constexpr int kWarpUnits = 2;   // of a warp in one pass
constexpr int kMostWarps = 10;  // of a block
constexpr int kTileRows = 16;
constexpr int kTileSums = kTileRows * kMostFewColumns;
constexpr int kLeastBatch = 8;  // tiles between two meetings of a block's warps
constexpr int kMostBatch = 12;
constexpr int kMostTiles = 32;  // of a block
constexpr int kUnitProducts = kUnit / 16;
constexpr int kMostAhead = 4;

struct Cut {
  int splits = 2;       // blocks of a cluster; the first half of them has the lower half of the inputs
  int lower_units = 0;  // units in the lower half
  int units = 0;
  int units_each = 0;  // of a block
  int passes = 1;
  int warps = 1;
  int tiles = 0;       // of the matrix
  int tiles_each = 0;  // of a cluster
  int batch = 0;       // tiles between two meetings of a block's warps
};

constexpr int kMostProducts = 4;  // of one launch: of the same inputs, format and cut

struct Arguments {
  Product product;
  Cut cut;
  int first_cluster = 0;  // of the launch
  uint32_t row_bytes = 0;
  uint32_t row_scales = 0;  // bytes of the scales of a row (FP8 blocks: of 128 rows)
  int group_shift = 0;      // a group of integers has 1 << group_shift of the parts that a step loads scales for
};

struct Group {
  Arguments products[kMostProducts];
  int count = 1;
};

// Loads that take place where row < limit, else leave the registers as they are: without a branch, behind which the
// compiler would wait for what was loaded before it. Codes pass once: the first-level cache need not keep
// them, but the second level should fetch whole lines, for a row's next bytes are wanted soon.
struct Valid {
  int row, limit;
};
// Of what an earlier kernel wrote: not by the way for data that never changes.
__device__ inline void load_sixteen(const uint8_t* from, Valid valid, uint4& out) {
  asm volatile("{.reg .pred p; setp.lt.s32 p, %5, %6; @p ld.global.v4.u32 {%0,%1,%2,%3}, [%4];}"
               : "+r"(out.x), "+r"(out.y), "+r"(out.z), "+r"(out.w)
               : "l"(from), "r"(valid.row), "r"(valid.limit));
}
__device__ inline void load_once(const uint8_t* from, Valid valid, uint4& out) {
  asm volatile(
      "{.reg .pred p; setp.lt.s32 p, %5, %6; @p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];}"
      : "+r"(out.x), "+r"(out.y), "+r"(out.z), "+r"(out.w)
      : "l"(from), "r"(valid.row), "r"(valid.limit));
}
__device__ inline void load_eight(const uint8_t* from, Valid valid, uint32_t& first, uint32_t& second) {
  asm volatile("{.reg .pred p; setp.lt.s32 p, %3, %4; @p ld.global.nc.v2.u32 {%0,%1}, [%2];}"
               : "+r"(first), "+r"(second)
               : "l"(from), "r"(valid.row), "r"(valid.limit));
}
template <int kBytes>
__device__ inline void load_few(const uint8_t* from, Valid valid, uint32_t& out) {
  if constexpr (kBytes == 4) {
    asm volatile("{.reg .pred p; setp.lt.s32 p, %2, %3; @p ld.global.nc.u32 %0, [%1];}"
                 : "+r"(out)
                 : "l"(from), "r"(valid.row), "r"(valid.limit));
  } else {
    asm volatile("{.reg .pred p; setp.lt.s32 p, %2, %3; @p ld.global.nc.u16 %0, [%1];}"
                 : "+r"(out)
                 : "l"(from), "r"(valid.row), "r"(valid.limit));
  }
}

// Where a lane loads from: its two rows of a tile, at its share of its warp's first unit. `rows` counts them from the
// block's first; `limits` is the number of the block's rows for each of the warp's units, 0 where it has no such unit.
struct Lane {
  const uint8_t* codes[2];
  const uint8_t* scales[2];
  int rows[2];
  int limits[kWarpUnits];
  int unit;

  __device__ Valid valid(int i, int warp_unit) const { return {rows[i], limits[warp_unit]}; }
};

// What a lane loads of its two rows at once: its share of a step of inputs, and the bits of the scales.
template <int kScales>
struct Loaded {
  uint4 codes[2];
  uint32_t scales[2][kScales > 0 ? kScales : 1];
};

// sum += scale of the row * part.
__device__ inline void add_scaled(float (&sum)[4], const float (&part)[4], float scale_a, float scale_b) {
  sum[0] = fmaf(part[0], scale_a, sum[0]);
  sum[1] = fmaf(part[1], scale_a, sum[1]);
  sum[2] = fmaf(part[2], scale_b, sum[2]);
  sum[3] = fmaf(part[3], scale_b, sum[3]);
}
template <int kBytes>
__device__ inline float scale_of(uint32_t bits, ScaleType type) {
  if constexpr (kBytes == 4) return __uint_as_float(bits);
  const float half = f16_bits_to_float(static_cast<uint16_t>(bits));
  return type == ScaleType::kF16 ? half : __uint_as_float(bits << 16);
}

// Of each format: how many steps a unit takes, what a step loads, how products are formed, and which inputs they take:
// of eight inputs 8 q … 8 q + 7 of a unit, where the first four and the last four go (as operands of the tensor cores,
// `product` of the unit, lane l of its four). kScales: scales of groups in a unit; kBytes: of a scale.
template <WeightFormat kFormat, int kScales, int kBytes>
struct Format;

struct Place {
  int product, lane;
};
// Four inputs as the operands b0 and b1, in their order, or the even ones and the odd ones.
struct InOrder {
  __device__ static void pack(const float (&x)[8], uint2 (&b)[2]) {
    b[0] = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
    b[1] = make_uint2(pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
  }
};
struct EvenAndOdd {
  __device__ static void pack(const float (&x)[8], uint2 (&b)[2]) {
    b[0] = make_uint2(pack_bf16(x[0], x[2]), pack_bf16(x[1], x[3]));
    b[1] = make_uint2(pack_bf16(x[4], x[6]), pack_bf16(x[5], x[7]));
  }
};

template <int kBytes>
struct Format<WeightFormat::kBF16, 0, kBytes> : InOrder {
  static constexpr int kSteps = 4;
  using Step = Loaded<0>;
  __device__ static Place place(int q, int half) { return {q / 4 * 2 + half, q % 4}; }
  __device__ static void load(const Arguments& p, const Lane& lane, int unit, int step, Step& out) {
#pragma unroll
    for (int i = 0; i < 2; ++i) load_once(lane.codes[i] + unit * 256 + step * 64, lane.valid(i, unit), out.codes[i]);
  }
  __device__ static void multiply(const Arguments&, const Step& w, const uint2* b, float (&sum)[4]) {
    mma(sum, w.codes[0].x, w.codes[1].x, w.codes[0].y, w.codes[1].y, b[0].x, b[0].y);
    mma(sum, w.codes[0].z, w.codes[1].z, w.codes[0].w, w.codes[1].w, b[1].x, b[1].y);
  }
};

// Codes of a byte, 64 inputs a step: the even bytes of a word make one pair, the odd ones the other.
struct Bytes : EvenAndOdd {
  static constexpr int kSteps = 2;
  __device__ static Place place(int q, int half) { return {q / 8 * 4 + q % 2 * 2 + half, q / 2 % 4}; }
  template <typename Step>
  __device__ static void load_codes(const Lane& lane, int unit, int step, Step& out) {
#pragma unroll
    for (int i = 0; i < 2; ++i) load_once(lane.codes[i] + unit * 128 + step * 64, lane.valid(i, unit), out.codes[i]);
  }
};
template <typename Decode>
__device__ inline void multiply_bytes(const uint4 (&codes)[2], const uint2* b, float (&sum)[4], const Decode& decode) {
  const uint32_t first[4] = {codes[0].x, codes[0].y, codes[0].z, codes[0].w};
  const uint32_t second[4] = {codes[1].x, codes[1].y, codes[1].z, codes[1].w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t even[2];
    uint32_t odd[2];
    decode(first[i], even[0], odd[0]);
    decode(second[i], even[1], odd[1]);
    mma(sum, even[0], even[1], odd[0], odd[1], b[i].x, b[i].y);
  }
}
struct DecodeE4m3 {
  __device__ void operator()(uint32_t word, uint32_t& even, uint32_t& odd) const {
    even = e4m3_pair(word << 8);
    odd = e4m3_pair(word);
  }
};
struct DecodeInt8 {
  __device__ void operator()(uint32_t word, uint32_t& even, uint32_t& odd) const {
    even = int8_pair(word);
    odd = int8_pair(word >> 8);
  }
};

template <int kBytes>
struct Format<WeightFormat::kFp8Row, 0, kBytes> : Bytes {
  using Step = Loaded<0>;
  __device__ static void load(const Arguments& p, const Lane& lane, int unit, int step, Step& out) {
    load_codes(lane, unit, step, out);
  }
  __device__ static void multiply(const Arguments&, const Step& w, const uint2* b, float (&sum)[4]) {
    multiply_bytes(w.codes, b, sum, DecodeE4m3());
  }
};

// One scale to all rows of a tile.
template <int kBytes>
struct Format<WeightFormat::kFp8Block, 1, kBytes> : Bytes {
  using Step = Loaded<1>;
  __device__ static void load(const Arguments& p, const Lane& lane, int unit, int step, Step& out) {
    load_codes(lane, unit, step, out);
    load_few<kBytes>(lane.scales[0] + (lane.unit + unit) * kBytes, lane.valid(0, unit), out.scales[0][0]);
  }
  __device__ static void multiply(const Arguments& p, const Step& w, const uint2* b, float (&sum)[4]) {
    float part[4] = {};
    multiply_bytes(w.codes, b, part, DecodeE4m3());
    const float scale = scale_of<kBytes>(w.scales[0][0], p.product.w.scale_type);
    add_scaled(sum, part, scale, scale);
  }
};

// Eight bits; a step lies within a group.
template <int kBytes>
struct Format<WeightFormat::kInt8, 1, kBytes> : Bytes {
  using Step = Loaded<1>;
  __device__ static void load(const Arguments& p, const Lane& lane, int unit, int step, Step& out) {
    load_codes(lane, unit, step, out);
    const int group = (2 * (lane.unit + unit) + step) >> p.group_shift;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_few<kBytes>(lane.scales[i] + group * kBytes, lane.valid(i, unit), out.scales[i][0]);
    }
  }
  __device__ static void multiply(const Arguments& p, const Step& w, const uint2* b, float (&sum)[4]) {
    float part[4] = {};
    multiply_bytes(w.codes, b, part, DecodeInt8());
    const ScaleType type = p.product.w.scale_type;
    add_scaled(sum, part, scale_of<kBytes>(w.scales[0][0], type), scale_of<kBytes>(w.scales[1][0], type));
  }
};

// A lane has 32 inputs one behind the other, of two blocks. Nibble j of a word makes a pair with nibble j + 4.
template <int kBytes>
struct Format<WeightFormat::kNvfp4, 1, kBytes> {
  static constexpr int kSteps = 1;
  using Step = Loaded<1>;
  __device__ static Place place(int q, int half) { return {q % 4 * 2 + half, q / 4}; }
  __device__ static void pack(const float (&x)[8], uint2 (&b)[2]) {
    b[0] = make_uint2(pack_bf16(x[0], x[4]), pack_bf16(x[1], x[5]));
    b[1] = make_uint2(pack_bf16(x[2], x[6]), pack_bf16(x[3], x[7]));
  }
  __device__ static void load(const Arguments& p, const Lane& lane, int unit, int, Step& out) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_once(lane.codes[i] + unit * 64, lane.valid(i, unit), out.codes[i]);
      load_few<2>(lane.scales[i] + unit * 8, lane.valid(i, unit), out.scales[i][0]);
    }
  }
  __device__ static void multiply(const Arguments&, const Step& w, const uint2* b, float (&sum)[4]) {
    const uint32_t first[4] = {w.codes[0].x, w.codes[0].y, w.codes[0].z, w.codes[0].w};
    const uint32_t second[4] = {w.codes[1].x, w.codes[1].y, w.codes[1].z, w.codes[1].w};
    const uint32_t scales[2] = {nvfp4_scales(w.scales[0][0]), nvfp4_scales(w.scales[1][0])};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t sa = __byte_perm(scales[0], 0, i < 2 ? 0x1010 : 0x3232);
      const uint32_t sb = __byte_perm(scales[1], 0, i < 2 ? 0x1010 : 0x3232);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t wa = first[i] >> 8 * half;
        const uint32_t wb = second[i] >> 8 * half;
        mma(sum, multiply_pairs(e2m1_pair<0>(wa), sa), multiply_pairs(e2m1_pair<0>(wb), sb),
            multiply_pairs(e2m1_pair<1>(wa), sa), multiply_pairs(e2m1_pair<1>(wb), sb), b[2 * i + half].x,
            b[2 * i + half].y);
      }
    }
  }
};

template <typename Pairs>
__device__ inline void load_words(const uint8_t* row, int unit, Valid valid, uint4& out) {
  if constexpr (Pairs::kBits == 4) {
    load_once(row + unit * 64, valid, out);
  } else {  // the 48 bytes of a unit share sectors with its neighbours': kept in the first-level cache
    const int lane = threadIdx.x % 4;
    load_eight(row + unit * 48 + 8 * lane, valid, out.x, out.y);
    load_few<4>(row + unit * 48 + 32 + 4 * lane, valid, out.z);
  }
}

// Codes of 3 and 4 bits: product j of a unit takes its inputs 16 j to 16 j + 15, so that groups end with products. A
// lane has four words of a unit (numeric/int_group.h); `Pairs` gives code j of the first two, or of the last two.
template <typename Pairs, int kScales, int kBytes>
struct Words : InOrder {
  static constexpr int kSteps = 1;
  using Step = Loaded<kScales>;
  __device__ static Place place(int q, int half) { return {q / 2, q % 2 * 2 + half}; }
  __device__ static void load(const Arguments& p, const Lane& lane, int unit, int, Step& out) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_words<Pairs>(lane.codes[i], unit, lane.valid(i, unit), out.codes[i]);
#pragma unroll
      for (int j = 0; j < kScales; ++j) {
        const int group = ((lane.unit + unit) * kScales >> p.group_shift) + (j >> p.group_shift);
        load_few<kBytes>(lane.scales[i] + group * kBytes, lane.valid(i, unit), out.scales[i][j]);
      }
    }
  }
  __device__ static void multiply(const Arguments& p, const Step& w, const uint2* b, float (&sum)[4]) {
    constexpr int kProducts = kUnitProducts / kScales;
    const Pairs first(w.codes[0]);
    const Pairs second(w.codes[1]);
    const ScaleType type = p.product.w.scale_type;
#pragma unroll
    for (int group = 0; group < kScales; ++group) {
      float part[4] = {};
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        const int j = group * kProducts + i;
        mma(part, first.get(0, j), second.get(0, j), first.get(1, j), second.get(1, j), b[j].x, b[j].y);
      }
      add_scaled(sum, part, scale_of<kBytes>(w.scales[0][group], type), scale_of<kBytes>(w.scales[1][group], type));
    }
  }
};

template <int kScales, int kBytes>
struct Format<WeightFormat::kInt4, kScales, kBytes> : Words<Int4Pairs, kScales, kBytes> {};
template <int kScales, int kBytes>
struct Format<WeightFormat::kInt3, kScales, kBytes> : Words<Int3Pairs, kScales, kBytes> {};

// At the block's first tile.
template <WeightFormat kFormat>
__device__ inline Lane first_lane(const Arguments& p, int64_t first_tile, int tiles, int unit, int units) {
  constexpr int kUnitBytes = kFormat == WeightFormat::kBF16                                      ? 256
                             : kFormat == WeightFormat::kInt3                                    ? 48
                             : kFormat == WeightFormat::kInt4 || kFormat == WeightFormat::kNvfp4 ? 64
                                                                                                 : 128;
  const Weight& w = p.product.w;
  const int column = threadIdx.x % 4;
  const int64_t first_row = first_tile * kTileRows;
  const auto* codes = static_cast<const uint8_t*>(w.data) + unit * kUnitBytes;
  const auto* scales = static_cast<const uint8_t*>(w.scales);
  if constexpr (kFormat != WeightFormat::kInt3) codes += 16 * column;
  if constexpr (kFormat == WeightFormat::kNvfp4) scales += 8 * unit + 2 * column;
  const auto left = static_cast<int>(w.rows - first_row);
  const int block_rows = left < tiles * kTileRows ? left : tiles * kTileRows;
  Lane lane;
  lane.unit = unit;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    lane.rows[i] = static_cast<int>(threadIdx.x % 32 / 4) + 8 * i;
    const int64_t row = first_row + lane.rows[i];
    lane.codes[i] = codes + row * p.row_bytes;
    lane.scales[i] = scales + (kFormat == WeightFormat::kFp8Block ? row / 128 : row) * p.row_scales;
  }
#pragma unroll
  for (int i = 0; i < kWarpUnits; ++i) lane.limits[i] = i < units ? block_rows : 0;
  return lane;
}

template <WeightFormat kFormat>
__device__ inline void next_tile(const Arguments& p, int64_t first_tile, Lane& lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    lane.rows[i] += kTileRows;
    lane.codes[i] += static_cast<uint64_t>(p.row_bytes) * kTileRows;
    if constexpr (kFormat == WeightFormat::kFp8Block) {
      lane.scales[i] = static_cast<const uint8_t*>(p.product.w.scales) +
                       (first_tile * kTileRows + lane.rows[i]) / 128 * p.row_scales;
    } else {
      lane.scales[i] += static_cast<uint64_t>(p.row_scales) * kTileRows;
    }
  }
}

// The inputs of a warp's units, all columns, as operands of the tensor cores. They are read in order, eight of a column
// a lane, and brought to their lanes through `room` ([kWarpUnits * kUnitProducts, 32] in shared memory, the warp's
// own).
template <typename F>
__device__ inline void gather_inputs(const Product& p, int unit, int units, uint2* room,
                                     uint2 (&inputs)[kWarpUnits * kUnitProducts]) {
  constexpr int kAtOnce = 4;  // columns
  const int lane = threadIdx.x % 32;
  const int tokens = static_cast<int>(p.tokens);
  const auto* x = reinterpret_cast<const uint8_t*>(p.x + static_cast<int64_t>(unit) * kUnit + 8 * lane);
#pragma unroll
  for (int first = 0; first < kMostFewColumns; first += kAtOnce) {
    if (first >= tokens) break;
    uint4 loaded[kAtOnce][2] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Valid valid = {first + i, lane / 16 < units ? tokens : 0};
      const uint8_t* from = x + (first + i) * p.w.inputs * static_cast<int64_t>(sizeof(float));
      load_sixteen(from, valid, loaded[i][0]);
      load_sixteen(from + 16, valid, loaded[i][1]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint4& a = loaded[i][0];
      const uint4& b = loaded[i][1];
      const float eight[8] = {__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w),
                              __uint_as_float(b.x), __uint_as_float(b.y), __uint_as_float(b.z), __uint_as_float(b.w)};
      uint2 operands[2];
      F::pack(eight, operands);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Place to = F::place(lane % 16, half);
        room[(lane / 16 * kUnitProducts + to.product) * 32 + (first + i) * 4 + to.lane] = operands[half];
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kWarpUnits * kUnitProducts; ++i) {
    inputs[i] = make_uint2(0, 0);
    if (lane / 4 < tokens) inputs[i] = room[i * 32 + lane];
  }
}

// Adds the warps' sums of the last tiles, in order of the inputs.
__device__ inline void add_warps(const float4* parts, int warps, int tiles, bool first_pass, float4* sums) {
  for (int i = static_cast<int>(threadIdx.x); i < tiles * 32; i += static_cast<int>(blockDim.x)) {
    const float4* from = parts + i / 32 * warps * 32 + i % 32;
    float4 sum = first_pass ? make_float4(0, 0, 0, 0) : sums[i];
    for (int warp = 0; warp < warps; ++warp) {
      const float4 part = from[warp * 32];
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    sums[i] = sum;
  }
}

// Where the sum of a row and column of a tile lies: the order of the tensor cores' result.
__device__ inline int place_of(int row, int column) {
  return (row % 8 * 4 + column / 2) * 4 + row / 8 * 2 + column % 2;
}

// Adds the blocks' sums of the cluster's tiles; each block does this for some of the tiles.
__device__ inline void add_blocks(const Arguments& p, float* sums, int64_t first_tile, int tiles, float unit) {
  const auto cluster = cooperative_groups::this_cluster();
  const Product& product = p.product;
  const int columns = static_cast<int>(product.tokens);
  const int splits = p.cut.splits;
  const int rank = static_cast<int>(cluster.block_rank());
  const int mine = tiles > rank ? (tiles - rank + splits - 1) / splits : 0;
  for (int i = threadIdx.x; i < mine * columns * kTileRows; i += static_cast<int>(blockDim.x)) {
    const int tile = i / (columns * kTileRows) * splits + rank;
    const int column = i / kTileRows % columns;
    const int64_t row = (first_tile + tile) * kTileRows + i % kTileRows;
    if (row >= product.w.rows) continue;
    float* here = sums + tile * kTileSums + place_of(i % kTileRows, column);
    float half[2] = {};
    for (int split = 0; split < splits; ++split) half[split >= splits / 2] += *cluster.map_shared_rank(here, split);
    const int64_t to = column * product.w.rows + row;
    if (product.add_halves) {
      product.y[to] = finish_sum(product.w, row, half[0] * unit) + finish_sum(product.w, row, half[1] * unit);
    } else if (product.upper == nullptr) {
      product.y[to] = finish_sum(product.w, row, (half[0] + half[1]) * unit);
    } else {
      product.y[to] = finish_sum(product.w, row, half[0] * unit);
      product.upper[to] = finish_sum(product.w, row, half[1] * unit);
    }
  }
}

template <WeightFormat kFormat, int kScales, int kBytes>
__global__ void __launch_bounds__(32 * kMostWarps, 2) few_columns(const __grid_constant__ Group group) {
  using F = Format<kFormat, kScales, kBytes>;
  let_next_start();
  const int cluster_index = static_cast<int>(blockIdx.x) / group.products[0].cut.splits;
  int which = 0;
  while (which + 1 < group.count && cluster_index >= group.products[which + 1].first_cluster) ++which;
  const Arguments& p = group.products[which];
  constexpr int kSteps = kWarpUnits * F::kSteps;
  constexpr int kAhead = kSteps < kMostAhead ? kSteps : kMostAhead;  // steps that are loaded ahead of their use
  constexpr int kStepProducts = kUnitProducts / F::kSteps;
  extern __shared__ float4 shared[];
  const Cut& cut = p.cut;
  const int warp = threadIdx.x / 32;
  float4* parts = shared;                              // [batch, warps, 32]
  float4* sums = shared + cut.batch * cut.warps * 32;  // [tiles_each, 32]

  const int split = static_cast<int>(blockIdx.x) % cut.splits;
  const int64_t first_tile = static_cast<int64_t>(cluster_index - p.first_cluster) * cut.tiles_each;
  const int tiles = static_cast<int>(cut.tiles - first_tile < cut.tiles_each ? cut.tiles - first_tile : cut.tiles_each);
  const int half = split / (cut.splits / 2);
  const int half_end = half == 0 ? cut.lower_units : cut.units;
  const int block_first = (half == 0 ? 0 : cut.lower_units) + split % (cut.splits / 2) * cut.units_each;
  const int block_end = block_first + cut.units_each < half_end ? block_first + cut.units_each : half_end;

  for (int pass = 0; pass < cut.passes; ++pass) {
    const int unit = block_first + (pass * cut.warps + warp) * kWarpUnits;
    const int units = block_end - unit;  // this warp has the first two of these
    typename F::Step ring[kAhead] = {};
    Lane lane = first_lane<kFormat>(p, first_tile, tiles, unit, units);
#pragma unroll
    for (int step = 0; step < kAhead; ++step) F::load(p, lane, step / F::kSteps, step % F::kSteps, ring[step]);
    await_previous();  // the first weights are on their way meanwhile
    uint2 inputs[kWarpUnits * kUnitProducts];
    gather_inputs<F>(p.product, unit, units, reinterpret_cast<uint2*>(parts) + warp * (kWarpUnits * kUnitProducts * 32),
                     inputs);
    __syncthreads();  // sums of other warps come where inputs were

    int met = 0;  // tiles whose sums were added
    float4* part = parts + warp * 32 + threadIdx.x % 32;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      float sum[kWarpUnits][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        typename F::Step& slot = ring[step % kAhead];
        F::multiply(p, slot, inputs + step * kStepProducts, sum[step / F::kSteps]);
        const int coming = (step + kAhead) % kSteps;
        if (coming == 0) next_tile<kFormat>(p, first_tile, lane);
        F::load(p, lane, coming / F::kSteps, coming % F::kSteps, slot);
      }
      *part = make_float4(sum[0][0] + sum[1][0], sum[0][1] + sum[1][1], sum[0][2] + sum[1][2], sum[0][3] + sum[1][3]);
      part += cut.warps * 32;
      if (tile + 1 - met == cut.batch || tile + 1 == tiles) {
        __syncthreads();
        add_warps(parts, cut.warps, tile + 1 - met, pass == 0, sums + met * 32);
        __syncthreads();
        met = tile + 1;
        part = parts + warp * 32 + threadIdx.x % 32;
      }
    }
  }
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  add_blocks(p, reinterpret_cast<float*>(sums), first_tile, tiles, kFormat == WeightFormat::kNvfp4 ? kNvfp4Unit : 1.0F);
  cluster.sync();  // others read this block's sums
}

int ceil_div(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

// From the shape alone; how many tiles a cluster takes comes later, and no sum depends on it.
Cut cut_of(const Weight& w) {
  constexpr int kMostSplits = 8;  // blocks of a cluster on every card
  constexpr int kBlockUnits = kMostWarps * kWarpUnits;
  constexpr int kEnoughBlocks = 264;
  Cut cut;
  cut.units = static_cast<int>(w.inputs / kUnit);
  cut.lower_units = ceil_div(cut.units, 2);
  cut.tiles = ceil_div(w.rows, kTileRows);
  while (cut.splits < kMostSplits) {
    const int each = ceil_div(cut.lower_units, cut.splits / 2);
    const bool too_few = static_cast<int64_t>(cut.tiles) * cut.splits < kEnoughBlocks && each > kWarpUnits;
    if (each <= kBlockUnits && !too_few) break;
    cut.splits *= 2;
  }
  cut.units_each = ceil_div(cut.lower_units, cut.splits / 2);
  cut.passes = ceil_div(cut.units_each, kBlockUnits);
  cut.warps = ceil_div(ceil_div(cut.units_each, cut.passes), kWarpUnits);
  return cut;
}

// All clusters' blocks should be on the card at once, with equally many tiles each; else in as few waves as do. A
// cluster's tiles are of one product.
void share_tiles(Group& group, int clusters) {
  int tiles = 0;
  for (int i = 0; i < group.count; ++i) tiles += group.products[i].cut.tiles;
  const int waves = ceil_div(tiles, int64_t{clusters} * kMostTiles);
  const auto clusters_of = [&](int each) {
    int sum = 0;
    for (int i = 0; i < group.count; ++i) sum += ceil_div(group.products[i].cut.tiles, each);
    return sum;
  };
  int each = ceil_div(tiles, int64_t{clusters} * waves);
  while (clusters_of(each) > clusters * waves && each < kMostTiles) ++each;
  int first = 0;
  for (int i = 0; i < group.count; ++i) {
    Arguments& p = group.products[i];
    p.cut.tiles_each = each;
    p.cut.batch = each <= kMostBatch && each >= kLeastBatch ? each : kLeastBatch;
    p.first_cluster = first;
    first += ceil_div(p.cut.tiles, each);
  }
}

// How many clusters a card holds at once, of each kernel and size: asked once.
int resident_clusters(const void* kernel, const cudaLaunchConfig_t& config) {
  static std::mutex mutex;
  static std::map<std::array<uint64_t, 4>, int> known;
  const std::scoped_lock lock(mutex);
  int device = 0;
  TANDEM_CUDA_CHECK(cudaGetDevice(&device));
  const auto [entry, fresh] = known.try_emplace({reinterpret_cast<uint64_t>(kernel), config.blockDim.x,
                                                 config.attrs->val.clusterDim.x, static_cast<uint64_t>(device)},
                                                0);
  if (fresh) TANDEM_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&entry->second, kernel, &config));
  return entry->second < 1 ? 1 : entry->second;
}

constexpr size_t shared_bytes(int warps, int batch, int tiles) {
  return static_cast<size_t>(batch * warps + tiles) * kTileSums * sizeof(float);
}

template <WeightFormat kFormat, int kScales, int kBytes>
void launch_few(const Context& context, Group group) {
  const auto kernel = few_columns<kFormat, kScales, kBytes>;
  const auto* address = reinterpret_cast<const void*>(kernel);
  constexpr size_t kMostShared = shared_bytes(kMostWarps, kMostBatch, kMostTiles);
  static_assert(kMostShared <= 96 * 1024);
  static_assert(shared_bytes(1, kLeastBatch, 0) >= kWarpUnits * kUnitProducts * 32 * sizeof(uint2));
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(address, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
  const Cut& cut = group.products[0].cut;  // products of a launch differ in their tiles alone
  cudaLaunchAttribute attributes[2] = {{}, following()};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cut.splits), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(cut.splits));
  config.blockDim = dim3(static_cast<unsigned>(32 * cut.warps));
  config.dynamicSmemBytes = shared_bytes(cut.warps, kMostBatch, kMostTiles);
  config.stream = context.stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  share_tiles(group, resident_clusters(address, config));
  config.numAttrs = 2;
  const Arguments& last = group.products[group.count - 1];
  const int clusters = last.first_cluster + ceil_div(last.cut.tiles, last.cut.tiles_each);
  config.gridDim = dim3(static_cast<unsigned>(clusters * cut.splits));
  config.dynamicSmemBytes = shared_bytes(cut.warps, cut.batch, cut.tiles_each);
  TANDEM_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, group));
}

template <WeightFormat kFormat, int kScales>
void launch_with_scales(const Context& context, const Group& group) {
  if (group.products[0].product.w.scale_type == ScaleType::kF32) {
    launch_few<kFormat, kScales, 4>(context, group);
  } else {
    launch_few<kFormat, kScales, 2>(context, group);
  }
}

int log2_of(int64_t power) {
  int log = 0;
  while (power > 1) {
    power /= 2;
    ++log;
  }
  return log;
}

template <WeightFormat kFormat>
void launch_groups(const Context& context, const Group& group) {
  if (group.products[0].product.w.group >= kUnit) {
    launch_with_scales<kFormat, 1>(context, group);
  } else {
    launch_with_scales<kFormat, 4>(context, group);
  }
}

// Where the rows of codes and scales lie.
void place_rows(Arguments& p) {
  const Weight& w = p.product.w;
  const int scale = w.scale_type == ScaleType::kF32 ? 4 : 2;
  const auto bytes = [](int64_t count) { return static_cast<uint32_t>(count); };
  switch (w.format) {
    case WeightFormat::kBF16:
      p.row_bytes = bytes(2 * w.inputs);
      break;
    case WeightFormat::kFp8Block:
      p.row_bytes = bytes(w.inputs);
      p.row_scales = bytes(w.inputs / kUnit * scale);
      break;
    case WeightFormat::kNvfp4:
      p.row_bytes = bytes(w.inputs / 2);
      p.row_scales = bytes(w.inputs / 16);
      break;
    case WeightFormat::kInt3:
    case WeightFormat::kInt4:
      p.row_bytes = bytes(w.format == WeightFormat::kInt3 ? w.inputs / 8 * 3 : w.inputs / 2);
      p.row_scales = bytes(w.inputs / w.group * scale);
      p.group_shift = log2_of(w.group >= kUnit ? w.group / kUnit : w.group / 32);
      break;
    case WeightFormat::kInt8:
      p.row_bytes = bytes(w.inputs);
      p.row_scales = bytes(w.inputs / w.group * scale);
      p.group_shift = log2_of(w.group / 64);
      break;
    default:
      p.row_bytes = bytes(w.inputs);
      break;
  }
}

// Groups are counted by shifts.
bool group_serves(int64_t group, int64_t least) {
  return group >= least && (group & (group - 1)) == 0;
}

}  // namespace

bool few_columns_serve(const Product& p) {
  const Weight& w = p.w;
  if (w.inputs % kUnit != 0 || w.inputs > int64_t{kUnit} << 24 || w.rows > int64_t{1} << 30) return false;
  if ((p.upper != nullptr || p.add_halves) && w.inputs % (2 * kUnit) != 0) return false;
  if (!aligned_to(w.data, 16) || !aligned_to(p.x, 16)) return false;
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
      return false;
    case WeightFormat::kNvfp4:
      return aligned_to(w.scales, 2);
    case WeightFormat::kInt3:
    case WeightFormat::kInt4:
      return group_serves(w.group, 32);
    case WeightFormat::kInt8:
      return group_serves(w.group, 64);
    default:
      return true;
  }
}

bool few_columns_share(std::span<const Product> products) {
  if (products.size() > kMostProducts) return false;
  const Weight& first = products[0].w;
  const Cut cut = cut_of(first);
  return std::all_of(products.begin(), products.end(), [&](const Product& product) {
    const Weight& w = product.w;
    const Cut own = cut_of(w);
    return few_columns_serve(product) && w.format == first.format && w.inputs == first.inputs &&
           w.group == first.group && w.scale_type == first.scale_type && own.splits == cut.splits &&
           own.warps == cut.warps && own.passes == cut.passes;
  });
}

void few_columns_linear(const Context& context, std::span<const Product> products) {
  if (context.plans()) return;
  Group group;
  group.count = static_cast<int>(products.size());
  for (size_t i = 0; i < products.size(); ++i) {
    Arguments& p = group.products[i];
    p.product = products[i];
    p.cut = cut_of(products[i].w);
    place_rows(p);
  }
  switch (products[0].w.format) {
    case WeightFormat::kBF16:
      return launch_few<WeightFormat::kBF16, 0, 2>(context, group);
    case WeightFormat::kFp8Row:
    case WeightFormat::kFp8Tensor:
      return launch_few<WeightFormat::kFp8Row, 0, 2>(context, group);
    case WeightFormat::kFp8Block:
      return launch_with_scales<WeightFormat::kFp8Block, 1>(context, group);
    case WeightFormat::kNvfp4:
      return launch_few<WeightFormat::kNvfp4, 1, 2>(context, group);
    case WeightFormat::kInt3:
      return launch_groups<WeightFormat::kInt3>(context, group);
    case WeightFormat::kInt4:
      return launch_groups<WeightFormat::kInt4>(context, group);
    case WeightFormat::kInt8:
      return launch_with_scales<WeightFormat::kInt8, 1>(context, group);
    default:
      return;
  }
}

}  // namespace tandem::ops::cuda::dense
