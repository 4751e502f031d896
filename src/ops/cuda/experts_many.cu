// Products of many columns on tensor cores, for groups of up to 64 columns of one expert.
//
// A block has eight tiles of 16 rows, one a warp, and all columns of a group; units of weights and the columns' inputs
// come through stages in shared memory. A warp unpacks its weights to bytes in registers, once for all columns, and
// leaves out eights of columns that the group does not have.
//
// What bounds it: NVFP4 asks for D * S * T' in int64 for every row, column and 16 inputs: a multiplication and a wide
// multiply-add, a lane each, where the tensor cores do the 16 products in a fraction of the time. The others ask for
// three FP32 operations for 32 inputs.
#include "ops/cuda/experts_codebooks.cuh"
#include "ops/cuda/experts_nvfp4.cuh"

namespace tandem::ops::cuda::expert {

namespace {

using numeric::ExpertFormat;

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kColumns = kMostColumnsOfGroup;
constexpr int kEights = kColumns / 8;

template <typename F>
inline constexpr bool kCanonicalNvfp4 = std::is_same_v<F, Nvfp4>;
template <typename F>
inline constexpr int kStages = F::kInputs >= 256 ? 2 : 4;
// Inputs to a scale of a column.
template <typename F>
inline constexpr int kScaleInputs = kCanonicalNvfp4<F> ? 16 : 32;

// A stage in shared memory: a unit for each warp, bytes [inputs / 16][column][16], scales [inputs /
// kScaleInputs][column].
template <typename F>
inline constexpr int kWeightBytes = kWarps * F::kBytes;
template <typename F>
inline constexpr int kColumnBytes = F::kInputs * kColumns;
template <typename F>
inline constexpr int kStageBytes = kWeightBytes<F> + kColumnBytes<F> + F::kInputs / kScaleInputs<F> * kColumns * 4;

// The sums begin with `start`.
__device__ inline void multiply_16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, int start) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};\n"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(start));
}
__device__ inline void multiply_32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int start) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};\n"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}
// They are added to what d has.
__device__ inline void multiply_on_32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four matrices of eight rows of 16 bytes; the lanes have the addresses of the rows.
__device__ inline void load_matrices(uint32_t (&to)[4], const std::byte* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}

// The bytes of 16 inputs of all columns, of eights four at a time.
struct ColumnWords {
  uint32_t words[kEights];
};
__device__ inline ColumnWords load_columns(const std::byte* columns, int sixteen, int eights) {
  const std::byte* row = columns + (sixteen * kColumns + static_cast<int>(threadIdx.x) % 32) * 16;
  ColumnWords out;
#pragma unroll
  for (int four = 0; four < kEights / 4; ++four) {
    uint32_t words[4] = {0, 0, 0, 0};
    if (four * 4 < eights) load_matrices(words, row + four * 512);
#pragma unroll
    for (int i = 0; i < 4; ++i) out.words[four * 4 + i] = words[i];
  }
  return out;
}

// In lane 4 g + t: rows g and g + 8, columns 8 n + 2 t and the next, as mma gives them.
template <typename F>
struct Accumulators {
  using Value = std::conditional_t<kCanonicalNvfp4<F>, int64_t, float>;
  Value values[kEights][4];
};

// Bytes 2 * E2M1 of the four codes in the lower half: 12 added by the look-ups, which makes them unsigned, and taken
// off.
__device__ inline uint32_t nvfp4_signed_bytes(uint32_t codes) {
  const uint32_t positive = permute_bytes(0x0f0e0d0cU, 0x18141210U, codes);
  const uint32_t negative = permute_bytes(0x090a0b0cU, 0x00040608U, codes ^ 0x8888U);
  return ((positive | negative | 0x80808080U) - 0x0c0c0c0cU) ^ 0x80808080U;
}

__device__ inline void add_stage(Accumulators<Nvfp4>& sums, const std::byte* unit, const std::byte* columns,
                                 const std::byte* scales, int eights, const typename Nvfp4::Table&, const uint16_t*,
                                 int64_t) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const uint32_t codes0 = word_at(unit, 8, g);  // four scales of a row
  const uint32_t codes1 = word_at(unit, 8, g + 8);
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    // Lane t has inputs 4 t to 4 t + 3 of the block: half a word.
    const auto* halves = reinterpret_cast<const uint16_t*>(unit + (2 * b + t / 2) * 64 + g * 4) + t % 2;
    const uint32_t a0 = nvfp4_signed_bytes(halves[0]);
    const uint32_t a1 = nvfp4_signed_bytes(halves[16]);
    const int turn = (20 - 8 * b) & 31;
    const int scale0 = e4m3_times_512(__funnelshift_l(codes0, codes0, turn) & 0x07f00000U);
    const int scale1 = e4m3_times_512(__funnelshift_l(codes1, codes1, turn) & 0x07f00000U);
    const ColumnWords x = load_columns(columns, b, eights);
    const auto* ts = reinterpret_cast<const int2*>(scales + (b * kColumns + 2 * t) * 4);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      if (n >= eights) break;
      int d[4];
      multiply_16(d, a0, a1, x.words[n], 0);
      const int2 by = ts[4 * n];
      sums.values[n][0] += static_cast<int64_t>(d[0] * scale0) * by.x;
      sums.values[n][1] += static_cast<int64_t>(d[1] * scale0) * by.y;
      sums.values[n][2] += static_cast<int64_t>(d[2] * scale1) * by.x;
      sums.values[n][3] += static_cast<int64_t>(d[3] * scale1) * by.y;
    }
  }
}

inline constexpr int kMagicBits = 0x4b400000;  // 1.5 * 2^23: an integer below 2^22 added to the bits is added to it
inline constexpr float kMagic = 12582912.0F;

// The exact sums of a block of 32 inputs as FP32, for eight columns.
template <typename F>
struct BlockWeights {
  uint32_t a[4];
  float scale[2];  // of rows g and g + 8
  float less[2];

  __device__ BlockWeights(const std::byte* unit, int b, int g, int t, const typename F::Table& table) {
    a[0] = F::word(unit, g, b, 0, t, table);
    a[1] = F::word(unit, g + 8, b, 0, t, table);
    a[2] = F::word(unit, g, b, 1, t, table);
    a[3] = F::word(unit, g + 8, b, 1, t, table);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      scale[r] = static_cast<float>(F::scale(unit, g + 8 * r, b, 0));
      less[r] = -kMagic * scale[r];
    }
  }
  __device__ void sums(uint32_t b0, uint32_t b1, float (&out)[4]) const {
    int d[4];
    multiply_32(d, a, b0, b1, kMagicBits);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = fmaf(__int_as_float(d[i]), scale[i / 2], less[i / 2]);
  }
};
// Two scales: halves apart.
template <>
struct BlockWeights<Iq2s> {
  uint32_t a[4];
  float scale[2][2];  // by half
  float less[2][2];

  __device__ BlockWeights(const std::byte* unit, int b, int g, int t, const Iq2s::Table& table) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = Iq2s::word(unit, g + i % 2 * 8, b, i / 2, t, table);
      scale[i / 2][i % 2] = static_cast<float>(Iq2s::scale(unit, g + i % 2 * 8, b, i / 2));
      less[i / 2][i % 2] = -kMagic * scale[i / 2][i % 2];
    }
  }
  __device__ void sums(uint32_t b0, uint32_t b1, float (&out)[4]) const {
    int d[2][4];
    multiply_16(d[0], a[0], a[1], b0, kMagicBits);
    multiply_16(d[1], a[2], a[3], b1, kMagicBits);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[i] = fmaf(__int_as_float(d[0][i]), scale[0][i / 2], less[0][i / 2]) +
               fmaf(__int_as_float(d[1][i]), scale[1][i / 2], less[1][i / 2]);
    }
  }
};
// Four planes.
template <>
struct BlockWeights<Fp8> {
  uint32_t a[4][4];

  __device__ BlockWeights(const std::byte* unit, int, int g, int t, const Fp8::Table&) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Fp8::Planes planes = Fp8::planes(word_at(unit, i / 2 * 4 + t, g + i % 2 * 8));
      a[0][i] = planes.bytes & ~(planes.bit5 | planes.bit6);
      a[1][i] = planes.bytes & planes.bit5 & ~planes.bit6;
      a[2][i] = planes.bytes & planes.bit6 & ~planes.bit5;
      a[3][i] = planes.bytes & planes.bit5 & planes.bit6;
    }
  }
  __device__ void sums(uint32_t b0, uint32_t b1, float (&out)[4]) const {
    int d[4] = {0, 0, 0, 0};
    constexpr int kUnits[4] = {1, 8, 16, 16};  // of a plane in those of the one below
#pragma unroll
    for (int plane = 3; plane >= 0; --plane) {
      multiply_on_32(d, a[plane], b0, b1);
#pragma unroll
      for (int i = 0; i < 4; ++i) d[i] *= kUnits[plane];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = __int2float_rn(d[i]);
  }
};

template <typename F>
__device__ inline void add_stage(Accumulators<F>& sums, const std::byte* unit, const std::byte* columns,
                                 const std::byte* scales, int eights, const typename F::Table& table,
                                 const uint16_t* multipliers, int64_t stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll 1
  for (int b = 0; b < F::kInputs / 32; ++b) {
    const BlockWeights<F> weights(unit, b, g, t, table);
    const int block = std::is_same_v<F, Fp8> ? static_cast<int>(stage) : b;
    const float factor0 = F::factor(unit, g, block, multipliers);
    const float factor1 = F::factor(unit, g + 8, block, multipliers);
    const ColumnWords first = load_columns(columns, 2 * b, eights);
    const ColumnWords second = load_columns(columns, 2 * b + 1, eights);
    const auto* steps = reinterpret_cast<const float2*>(scales + (b * kColumns + 2 * t) * 4);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      if (n >= eights) break;
      float dots[4];
      weights.sums(first.words[n], second.words[n], dots);
      const float2 by = steps[4 * n];
      sums.values[n][0] = fmaf(dots[0], factor0 * by.x, sums.values[n][0]);
      sums.values[n][1] = fmaf(dots[1], factor0 * by.y, sums.values[n][1]);
      sums.values[n][2] = fmaf(dots[2], factor1 * by.x, sums.values[n][2]);
      sums.values[n][3] = fmaf(dots[3], factor1 * by.y, sums.values[n][3]);
    }
  }
}

// The columns of a group in the memory of the matrix.
struct GroupColumns {
  int32_t at[kColumns];
};

template <typename F>
__device__ void fetch_stage(std::byte* to, const std::byte* tile, const Product::Matrix& matrix,
                            const GroupColumns& columns, int eights, int64_t stage, int64_t stages) {
  if (stage < stages) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (tile != nullptr) {
      for (int at = lane * 16; at < F::kBytes; at += 512) {
        copy_16(shared_address(to + warp * F::kBytes + at), tile + stage * F::kBytes + at);
      }
    }
    constexpr int kSixteens = F::kInputs / 16;
    std::byte* bytes = to + kWeightBytes<F>;
    for (int i = static_cast<int>(threadIdx.x); i < kSixteens * eights * 8; i += kThreads) {
      const int column = i / kSixteens;
      const int sixteen = i % kSixteens;
      copy_16(shared_address(bytes + (sixteen * kColumns + column) * 16),
              matrix.columns.data + columns.at[column] * matrix.columns.stride + stage * F::kInputs + sixteen * 16);
    }
    constexpr int kScales = F::kInputs / kScaleInputs<F>;
    std::byte* scales = bytes + kColumnBytes<F>;
    for (int i = static_cast<int>(threadIdx.x); i < kScales * eights * 8; i += kThreads) {
      const int column = i / kScales;
      const int scale = i % kScales;
      copy_4(shared_address(scales + (scale * kColumns + column) * 4),
             matrix.columns.data + columns.at[column] * matrix.columns.stride + matrix.columns.inputs +
                 (stage * kScales + scale) * 4);
    }
  }
  commit_copies();
}

template <typename F>
__device__ void store(const Accumulators<F>& sums, const Product& product, const Product::Matrix& matrix,
                      const Group& group, const GroupColumns& columns, int64_t row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * n + lane % 4 * 2 + i % 2;
      if (column >= group.count) continue;
      float y;
      if constexpr (kCanonicalNvfp4<F>) {
        y = nvfp4_scaled(sums.values[n][i], product.scalars[group.expert * product.scalars_each + matrix.which],
                         matrix.columns.scales[columns.at[column]]);
      } else {
        y = sums.values[n][i];
      }
      matrix.out[static_cast<int64_t>(group.first + column) * product.rows + row + lane / 4 + i / 2 * 8] = y;
    }
  }
}

// Block x: kWarps tiles of rows of matrix z, for group y.
template <typename F>
__global__ void __launch_bounds__(kThreads, 2) multiply_group(Product product, typename F::Codebook book) {
  follow();
  const Group group = product.grouping.groups[blockIdx.y];
  if (group.count == 0) return;
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ GroupColumns columns;
  using Table = typename F::Table;
  auto& table = *reinterpret_cast<Table*>(shared + kStages<F> * kStageBytes<F>);
  make_table<F>(book, table);
  const Product::Matrix& matrix = product.matrices[blockIdx.z];
  if (threadIdx.x < kColumns) {
    // Columns that the group does not have repeat its last.
    const int slot = group.first + min(static_cast<int>(threadIdx.x), group.count - 1);
    columns.at[threadIdx.x] =
        matrix.columns.by_token ? product.grouping.order[slot] / static_cast<int32_t>(product.top_k) : slot;
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kTileRows;
  const bool works = row < product.rows;
  const int64_t stages = product.inputs / F::kInputs;
  const std::byte* record = product.records + group.expert * product.record_bytes;
  const std::byte* tile = works ? record + matrix.offset + row / kTileRows * stages * F::kBytes : nullptr;
  const uint16_t* multipliers = nullptr;
  if constexpr (std::is_same_v<F, Fp8>) {
    multipliers =
        reinterpret_cast<const uint16_t*>(record + matrix.scales_offset) + row / 128 * ((product.inputs + 127) / 128);
  }
  const int eights = (group.count + 7) / 8;
  __syncthreads();
  for (int s = 0; s < kStages<F> - 1; ++s) {
    fetch_stage<F>(shared + s * kStageBytes<F>, tile, matrix, columns, eights, s, stages);
  }
  Accumulators<F> sums;
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    for (auto& value : sums.values[n]) value = 0;
  }
  for (int64_t s = 0; s < stages; ++s) {
    await_copies<kStages<F> - 2>();
    __syncthreads();  // everyone's copies are here, and everyone is done with the stage before
    const int64_t ahead = s + kStages<F> - 1;
    fetch_stage<F>(shared + ahead % kStages<F> * kStageBytes<F>, tile, matrix, columns, eights, ahead, stages);
    const std::byte* stage = shared + s % kStages<F> * kStageBytes<F>;
    if (works) {
      add_stage(sums, stage + warp * F::kBytes, stage + kWeightBytes<F>, stage + kWeightBytes<F> + kColumnBytes<F>,
                eights, table, multipliers, s);
    }
  }
  if (works) store<F>(sums, product, matrix, group, columns, row);
}

template <typename F>
void launch(const Context& context, const Product& product) {
  constexpr int kShared = kStages<F> * kStageBytes<F> + static_cast<int>(sizeof(typename F::Table));
  const dim3 grid(static_cast<unsigned>(base::ceil_div(product.rows, kWarps * kTileRows)),
                  static_cast<unsigned>(product.grouping.bound), static_cast<unsigned>(product.count));
  allow_shared(multiply_group<F>, kShared);
  launch_following(context, multiply_group<F>, grid, kThreads, kShared, product, codebook<F>());
}

}  // namespace

void multiply_many(const Context& context, ExpertFormat format, const Product& product) {
  switch (format) {
    case ExpertFormat::kNvfp4:
      return launch<Nvfp4>(context, product);
    case ExpertFormat::kFp8Block:
      return launch<Fp8>(context, product);
    case ExpertFormat::kIq2s:
      return launch<Iq2s>(context, product);
    case ExpertFormat::kIq3xxs:
      return launch<Iq3xxs>(context, product);
    case ExpertFormat::kIq3s:
      return launch<Iq3s>(context, product);
    case ExpertFormat::kIq4xs:
      return launch<Iq4xs>(context, product);
    case ExpertFormat::kIq4nl:
      return launch<Iq4nl>(context, product);
    default:
      return launch<Q2_0>(context, product);
  }
}

}  // namespace tandem::ops::cuda::expert
