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

#include <algorithm>

#include "ops/cuda/dense_mma.cuh"
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

// ---- On the device ----

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

__device__ inline void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}
__device__ inline uint4 load_shared(uint32_t from) {
  uint4 out;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(from));
  return out;
}
__device__ inline void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from));
}

// A warp's sums of 32 rows: [rows 4 g and 4 g + 1, or the next two][eight columns][rows, columns as mma gives them].
using Sums = float[2][kEights][4];
// Its operands of 16 inputs: [rows 4 g and 4 g + 1, or the next two].
using Operands = uint32_t[2][4];

// How warps read a format: units of 16 rows, which hold kInputs inputs and lie in shared memory as copy() puts them.
template <typename F>
struct Reader;

template <>
struct Reader<Nvfp4> {
  static constexpr int kInputs = 64;
  static constexpr int kBytes = 576;
  // Sixteen bytes are a word of four rows; in words whose second bit is set, rows 0 to 7 and 8 to 15 change places, so
  // that eight lanes that load four words of eight rows meet no bank twice.
  __device__ static int place(int piece) { return piece < 32 ? piece ^ (piece >> 3 & 1) << 1 : piece; }

  uint32_t codes_at;
  uint32_t scales_at;
  uint32_t choice;  // of scales of two rows, those of the lane's block
  __device__ explicit Reader(const Nvfp4::Table&) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    codes_at = static_cast<uint32_t>(g / 4 * kBytes + ((t * 4 + g % 4) ^ (t & 2)) * 16);
    scales_at = static_cast<uint32_t>(g / 4 * kBytes + 512 + g % 4 * 16);
    choice = static_cast<uint32_t>(t / 2) * 0x11U + 0x40U;
  }
  // Half h of the lane's four rows, in one of two units.
  struct Half {
    uint32_t words[4];
    uint32_t factors[4];  // pairs of the same scale

    __device__ Half(const Reader& reader, const std::byte* unit, int h) {
      const auto units = static_cast<uint32_t>(__cvta_generic_to_shared(unit));
      const uint4 codes = load_shared(units + reader.codes_at + static_cast<uint32_t>(h * 256));
      const uint4 scales = load_shared(units + reader.scales_at);
      words[0] = codes.x, words[1] = codes.y, words[2] = codes.z, words[3] = codes.w;
      const uint32_t choice = reader.choice + static_cast<uint32_t>(h) * 0x22U;
      const uint32_t first = dense::nvfp4_scales(__byte_perm(scales.x, scales.y, choice));
      const uint32_t second = dense::nvfp4_scales(__byte_perm(scales.z, scales.w, choice));
      factors[0] = __byte_perm(first, 0, 0x1010);
      factors[1] = __byte_perm(first, 0, 0x3232);
      factors[2] = __byte_perm(second, 0, 0x1010);
      factors[3] = __byte_perm(second, 0, 0x3232);
    }
    // Of the s-th 16 inputs, rows 2 r and 2 r + 1.
    __device__ void operands(int s, int r, uint32_t (&a)[4]) const {
      const uint32_t first = words[2 * r] >> 8 * s;
      const uint32_t second = words[2 * r + 1] >> 8 * s;
      a[0] = dense::multiply_pairs(dense::e2m1_pair<0>(first), factors[2 * r]);
      a[1] = dense::multiply_pairs(dense::e2m1_pair<0>(second), factors[2 * r + 1]);
      a[2] = dense::multiply_pairs(dense::e2m1_pair<1>(first), factors[2 * r]);
      a[3] = dense::multiply_pairs(dense::e2m1_pair<1>(second), factors[2 * r + 1]);
    }
  };
};

// GGUF's block formats: weights are decoded to bytes, which BF16 holds, and multiplied by the rounded scale of their
// block.
template <typename F>
struct Reader {
  static constexpr int kInputs = F::kInputs;
  static constexpr int kBytes = F::kBytes;
  static constexpr int kScales = std::is_same_v<F, Iq2s> ? 2 : 1;  // of a block of 32 inputs
  __device__ static int place(int piece) { return piece; }

  const typename F::Table& table;
  int unit_at;
  int row;
  __device__ explicit Reader(const typename F::Table& entries) : table(entries) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    unit_at = g / 4 * kBytes;
    row = g % 4 * 4;
  }
  struct Half {
    const Reader& reader;
    const std::byte* unit;
    int block;
    uint32_t factors[4][kScales];

    __device__ Half(const Reader& from, const std::byte* units, int h)
        : reader(from), unit(units + from.unit_at), block(h) {
#pragma unroll
      for (int i = 0; i < 4 * kScales; ++i) {
        const int at = reader.row + i / kScales;
        const float factor =
            F::factor(unit, at, block, nullptr) * static_cast<float>(F::scale(unit, at, block, i % kScales));
        const __nv_bfloat162 both = __float2bfloat162_rn(factor);
        factors[i / kScales][i % kScales] = reinterpret_cast<const uint32_t&>(both);
      }
    }
    __device__ void operands(int s, int r, uint32_t (&a)[4]) const {
      const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t bytes = F::word(unit, reader.row + 2 * r + i, block, s, lane, reader.table);
        const uint32_t factor = factors[2 * r + i][s % kScales];
        a[i] = dense::multiply_pairs(byte_pair(bytes), factor);
        a[2 + i] = dense::multiply_pairs(byte_pair(bytes >> 8), factor);
      }
    }

   private:
    // The lower byte of each half, with its sign: 128 + its lower seven bits, less 128 or 256.
    __device__ static uint32_t byte_pair(uint32_t bytes) {
      return dense::subtract_pairs(dense::put_under(bytes, 0x007f007f, dense::kHundredTwentyEight),
                                   dense::put_under(bytes, 0x00800080, dense::kHundredTwentyEight));
    }
  };
};

// A unit of weights is needed every kSteps stages; kUnits of them are in shared memory.
template <typename F>
struct Layout {
  static constexpr int kSteps = Reader<F>::kInputs / kStep;
  static constexpr int units(int stages) { return (stages - 1 + kSteps - 1) / kSteps + 1; }
  static constexpr int kUnits = units(kStages);
  static constexpr int kWarpBytes = 2 * Reader<F>::kBytes;  // 32 rows
  static constexpr int kWeightBytes = kWarps * kWarpBytes;
};
template <typename F, bool kGateUp>
inline constexpr int kTiles = kGateUp && std::is_same_v<F, Nvfp4> ? 2 : 1;  // up may have columns of its own
template <typename F>
inline constexpr bool kHasTable = !std::is_same_v<typename F::Codebook, NoCodebook>;
template <typename F>
inline constexpr int kTableBytes = kHasTable<F> ? static_cast<int>(sizeof(typename F::Table)) : 0;
// The table, stages of columns, units of weights; the sums of gate and up afterwards.
template <typename F, bool kGateUp>
constexpr int shared_bytes(int stages) {
  const int bytes =
      kTableBytes<F> + stages * kTiles<F, kGateUp> * kTile + Layout<F>::units(stages) * Layout<F>::kWeightBytes;
  return std::max(bytes, kGateUp ? kInnerBytes : 0);
}

// A lane's part of the copies into shared memory. `columns` has where the group's columns begin, in pieces of 16 bytes.
template <typename F, bool kGateUp>
class Copies {
 public:
  __device__ Copies(const Product& product, const Group& group, const uint32_t* columns, int eights, bool shared,
                    int64_t first_row, uint32_t tiles, uint32_t weights)
      : product_(product),
        columns_(columns + threadIdx.x / 8),
        eights_(eights),
        shared_(shared),
        row_(first_row + (kGateUp ? warp() % 4 : warp()) * 32) {
    const int column = static_cast<int>(threadIdx.x) / 8;
    tiles_ = tiles + static_cast<uint32_t>(column * 128 + ((lane() % 8 ^ column % 8) << 4));
    weights_ = weights + static_cast<uint32_t>(warp() * Layout<F>::kWarpBytes);
    record_ = product.records + group.expert * product.record_bytes;
    const auto units = static_cast<int>(product.inputs / Reader<F>::kInputs);
    steps_ = units * Layout<F>::kSteps;
    second_ = int64_t{units} * Reader<F>::kBytes;
    place();
  }
  __device__ void fetch() {
    if (pass_ < product_.passes) {
      fetch_columns();
      if (step_ % Layout<F>::kSteps == 0) fetch_units();
      stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
      if (++step_ == steps_) {
        step_ = 0;
        ++pass_;
        row_ += kWarps * 32;
        place();
      }
    }
    commit_copies();
  }
  __device__ int steps() const { return steps_; }

 private:
  static constexpr int kPieces = Reader<F>::kBytes / 16;
  static constexpr int kTail = kPieces % 32;
  static constexpr bool kTailsTogether = kTail > 0 && 2 * kTail <= 32;  // those of both units in one copy

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  __device__ void fetch_columns() {
    constexpr int kEach = kThreads / 8;
    const uint32_t to = tiles_ + static_cast<uint32_t>(stage_ * kTiles<F, kGateUp> * kTile);
    const uint32_t piece = static_cast<uint32_t>(step_ * 8 + lane() % 8);
#pragma unroll
    for (int i = 0; i < kColumns / kEach; ++i) {
      if (warp() * 4 + i * kEach >= 8 * eights_) break;
      const uint32_t from = columns_[i * kEach] + piece;
      copy_async(to + static_cast<uint32_t>(i * kEach * 128),
                 reinterpret_cast<const uint4*>(product_.columns[0]) + from);
      if constexpr (kTiles<F, kGateUp> == 2) {
        if (!shared_) {
          copy_async(to + static_cast<uint32_t>(i * kEach * 128 + kTile),
                     reinterpret_cast<const uint4*>(product_.columns[1]) + from);
        }
      }
    }
  }
  __device__ void fetch_units() {
    const uint32_t to = weights_ + static_cast<uint32_t>(unit_ * Layout<F>::kWeightBytes);
#pragma unroll
    for (int first = 0; first < kPieces; first += 32) {
      if (kPieces - first < 32 && (kTailsTogether || lane() >= kPieces - first)) break;
      const uint32_t at = to + static_cast<uint32_t>(Reader<F>::place(first + lane()) * 16);
      copy_async(at, from_ + first * 16);
      copy_async(at + Reader<F>::kBytes, from_ + second_ + first * 16);
    }
    if constexpr (kTailsTogether) {
      if (lane() < 2 * kTail) {
        const int place = lane() / kTail * kPieces + Reader<F>::place(kPieces - kTail + lane() % kTail);
        copy_async(to + static_cast<uint32_t>(place * 16), tail_);
      }
      tail_ += Reader<F>::kBytes;
    }
    from_ += Reader<F>::kBytes;
    unit_ = unit_ + 1 == Layout<F>::kUnits ? 0 : unit_ + 1;
  }
  // Rows behind the end repeat the last ones.
  __device__ void place() {
    const int64_t row = min(row_, product_.rows - 32);
    const std::byte* at = record_ + product_.offsets[kGateUp ? warp() / 4 : 0] + row / kTileRows * second_;
    from_ = at + lane() * 16;
    if constexpr (kTailsTogether) {
      tail_ = at + lane() / kTail % 2 * second_ + (kPieces - kTail + lane() % kTail) * 16;
    }
  }

  const Product& product_;
  const uint32_t* columns_;
  int eights_;
  bool shared_;
  int64_t row_;
  uint32_t tiles_;
  uint32_t weights_;
  const std::byte* record_;
  const std::byte* from_;
  const std::byte* tail_ = nullptr;
  int64_t second_;  // from a unit of 16 rows to the same of the next 16
  int steps_;
  int step_ = 0;
  int pass_ = 0;
  int stage_ = 0;
  int unit_ = 0;
};

// 32 inputs, with mma.sync.
__device__ inline void add_products(Sums& sums, const Operands (&operands)[2], uint32_t tile, int eights) {
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    if (n >= eights) break;
    uint32_t b[4];
    load_matrices(b, tile + static_cast<uint32_t>(n * 1024));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t(&a)[4] = operands[i / 2][i % 2];
      multiply_bf16(sums[i % 2][n], a[0], a[1], a[2], a[3], b[i / 2 * 2], b[i / 2 * 2 + 1]);
    }
  }
}

// What a warp reads of the stages.
template <typename F, bool kGateUp>
struct Stages {
  uint32_t tiles;  // the columns that the warp takes
  const std::byte* weights;
  const typename F::Table& table;
  int stage = 0;
  int unit = 0;
  int part = 0;  // of a unit

  __device__ uint32_t tile() const { return tiles + static_cast<uint32_t>(stage * kTiles<F, kGateUp> * kTile); }
  __device__ const std::byte* units() const { return weights + unit * Layout<F>::kWeightBytes; }
  __device__ void step() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (++part < Layout<F>::kSteps) return;
    part = 0;
    unit = unit + 1 == Layout<F>::kUnits ? 0 : unit + 1;
  }
};

// All steps of a pass with mma.sync.
template <typename F, bool kGateUp>
__device__ inline void add_steps(Sums& sums, Copies<F, kGateUp>& copies, Stages<F, kGateUp>& at, int eights) {
  const Reader<F> reader(at.table);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto place = static_cast<uint32_t>(lane % 8 * 128 + ((lane / 8 ^ lane % 8) << 4));
#pragma unroll 1
  for (int step = 0; step < copies.steps(); ++step) {
    wait_for_copies<kAhead - 1>();
    __syncthreads();  // everyone's copies are here, and everyone is done with the stage before
    copies.fetch();
    const uint32_t tile = at.tile() + place;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const typename Reader<F>::Half half(reader, at.units(), 2 * at.part + h);
      Operands operands[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) half.operands(i / 2, i % 2, operands[i / 2][i % 2]);
      add_products(sums, operands, tile ^ static_cast<uint32_t>(h * 64), eights);
    }
    at.step();
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The same with products of warp groups, 8 * kUsed columns: those of 16 inputs are computed while the
// operands of the next 16 are decoded.
template <typename F, bool kGateUp, int kUsed>
__device__ inline void add_warpgroup_steps(Sums& sums, Copies<F, kGateUp>& copies, Stages<F, kGateUp>& at) {
  const Reader<F> reader(at.table);
  Operands operands[2];
#pragma unroll 1
  for (int step = 0; step < copies.steps(); ++step) {
    wait_for_copies<kAhead - 1>();
    show_copies_to_products();
    __syncthreads();  // everyone's copies are here, and everyone's products are done with the stage before the last
    copies.fetch();
    const uint64_t columns = describe_columns(at.tile());
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const typename Reader<F>::Half half(reader, at.units(), 2 * at.part + h);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        wait_for_products<1>();  // those that read these operands
#pragma unroll
        for (int r = 0; r < 2; ++r) half.operands(s, r, operands[s][r]);
        begin_products();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          multiply_warpgroup<kUsed>(sums[r], operands[s][r], columns + static_cast<uint64_t>(4 * h + 2 * s));
        }
        commit_products();
      }
    }
    at.step();
  }
  wait_for_products<0>();
}
#endif

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
      wait_for_copies<0>();
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
