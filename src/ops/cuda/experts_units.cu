// Products of matrices in units of 16 rows with few columns an expert: a warp has a tile and reads it through a ring of
// units in shared memory, two lanes a row, all inputs in order. The canonical sums of FP8 and GGUF's block formats are
// a chain over blocks of 32 inputs, so no tile is split; many warps hide its latency.
//
// A block has the columns of its expert in shared memory and takes more of them in passes; a pass reads the tiles
// again, from the second-level cache.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/experts_codebooks.cuh"

namespace tandem::ops::cuda::expert {

namespace {

using numeric::ExpertFormat;

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int64_t kMostShared = 96 << 10;

template <typename F>
inline constexpr int kStages = F::kBytes <= 576 ? 8 : 4;

template <typename F>
__device__ void fetch_unit(std::byte* to, const std::byte* tile, int64_t unit, int64_t units, int lane) {
  if (unit < units) {
    const std::byte* from = tile + unit * F::kBytes;
#pragma unroll
    for (int at = 0; at < F::kBytes; at += 512) {
      if (at + 512 <= F::kBytes || at + lane * 16 < F::kBytes)
        copy_16(shared_address(to + at + lane * 16), from + at + lane * 16);
    }
  }
  commit_copies();
}

// The sums over the half blocks of a lane's row and their scales, for each column.
template <typename F, int C>
__device__ void block_sums(const std::byte* unit, int row, int b, int half, const typename F::Table& table,
                           const std::byte* q, int64_t column_bytes, int (&sums)[C]) {
  uint4 x[C];
  if constexpr (std::is_same_v<F, Fp8>) {
    Fp8::Planes w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = Fp8::planes(word_at(unit, 4 * half + i, row));
#pragma unroll
    for (int c = 0; c < C; ++c) {
      x[c] = *reinterpret_cast<const uint4*>(q + c * column_bytes);
      int planes[4] = {0, 0, 0, 0};
      Fp8::add_dots(w[0], x[c].x, planes);
      Fp8::add_dots(w[1], x[c].y, planes);
      Fp8::add_dots(w[2], x[c].z, planes);
      Fp8::add_dots(w[3], x[c].w, planes);
      sums[c] = Fp8::total(planes);
    }
  } else {
    uint32_t w[4];
    F::weights(unit, row, b, half, table, w);
    const int scale = F::scale(unit, row, b, half);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      x[c] = *reinterpret_cast<const uint4*>(q + c * column_bytes);
      int sum = dot_signed(w[0], x[c].x, 0);
      sum = dot_signed(w[1], x[c].y, sum);
      sum = dot_signed(w[2], x[c].z, sum);
      sums[c] = dot_signed(w[3], x[c].w, sum) * scale;
    }
  }
}

// The canonical products of a tile with C columns: bytes q [inputs], then FP32 scales of 32 of them.
template <typename F, int C>
__device__ void int8_tile(const std::byte* tile, const uint16_t* scales, int64_t inputs, const std::byte* columns,
                          int64_t column_bytes, const typename F::Table& table, std::byte* ring, float (&y)[C]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane % 16;
  const int half = lane / 16;
  const int64_t units = inputs / F::kInputs;
  constexpr int kRing = kStages<F>;
  for (int s = 0; s < kRing - 1; ++s) fetch_unit<F>(ring + s * F::kBytes, tile, s, units, lane);
#pragma unroll
  for (int c = 0; c < C; ++c) y[c] = 0.0F;
  for (int64_t u = 0; u < units; ++u) {
    const int64_t ahead = u + kRing - 1;
    fetch_unit<F>(ring + ahead % kRing * F::kBytes, tile, ahead, units, lane);
    await_copies<kRing - 1>();
    __syncwarp();
    const std::byte* unit = ring + u % kRing * F::kBytes;
#pragma unroll
    for (int b = 0; b < F::kInputs / 32; ++b) {
      const int64_t block = u * (F::kInputs / 32) + b;
      int sums[C];
      block_sums<F, C>(unit, row, b, half, table, columns + block * 32 + half * 16, column_bytes, sums);
      const float factor = F::factor(unit, row, std::is_same_v<F, Fp8> ? static_cast<int>(block) : b, scales);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        sums[c] += __shfl_xor_sync(kWholeWarp, sums[c], 16);
        const float s = reinterpret_cast<const float*>(columns + c * column_bytes + inputs)[block];
        y[c] = fmaf(__int2float_rn(sums[c]), factor * s, y[c]);
      }
    }
    __syncwarp();
  }
}

// With activations in FP32: two partial sums a row.
template <typename F, int C>
__device__ void float_tile(const std::byte* tile, const uint16_t* scales, int64_t inputs, const std::byte* columns,
                           int64_t column_bytes, const typename F::Table& table, std::byte* ring, float (&y)[C]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane % 16;
  const int half = lane / 16;
  const int64_t units = inputs / F::kInputs;
#pragma unroll
  for (int c = 0; c < C; ++c) y[c] = 0.0F;
  for (int64_t u = 0; u < units; ++u) {
    __syncwarp();
    fetch_unit<F>(ring, tile, u, units, lane);
    await_copies<0>();
    __syncwarp();
    for (int b = 0; b < F::kInputs / 32; ++b) {
      const int64_t block = u * (F::kInputs / 32) + b;
      const float factor = F::factor(ring, row, std::is_same_v<F, Fp8> ? static_cast<int>(block) : b, scales);
      for (int i = 0; i < 16; ++i) {
        float weight;
        int input = half * 16 + i;
        if constexpr (std::is_same_v<F, Fp8>) {
          const uint32_t code = word_at(ring, 4 * half + i / 4, row) >> 8 * (i % 4) & 255;
          const auto magnitude = static_cast<float>(e4m3_times_512((code & 127) << 20));
          weight = ((code & 128) != 0 ? -magnitude : magnitude) * factor;
        } else {
          uint32_t w[4];
          F::weights(ring, row, b, half, table, w);
          uint32_t word = w[0];
          for (int k = 1; k < 4; ++k) word = i / 4 == k ? w[k] : word;
          const auto byte = static_cast<int8_t>(word >> 8 * (i % 4));
          weight = static_cast<float>(byte * F::scale(ring, row, b, half)) * factor;
          if constexpr (std::is_same_v<F, Q2_0>) input = half * 16 + i % 4 * 4 + i / 4;
          if constexpr (std::is_same_v<F, Iq4nl> || std::is_same_v<F, Iq4xs>) {
            const int word_of_block = 2 * half + i / 8;
            input = i % 2 * 16 + 4 * word_of_block + i % 8 / 2;
          }
        }
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const float x = reinterpret_cast<const float*>(columns + c * column_bytes)[block * 32 + input];
          y[c] = fmaf(weight, x, y[c]);
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < C; ++c) y[c] += __shfl_xor_sync(kWholeWarp, y[c], 16);
}

// What a warp of the block multiplies, and where its results go.
struct Tile {
  const std::byte* data;
  const uint16_t* scales;
  float multiplier;  // NVFP4: weight_scale_2
  int64_t row;
};

template <typename F, bool kFloats, int C>
__device__ void tile_columns(const Product& product, const Product::Matrix& matrix, const Tile& tile,
                             const int64_t (&slots)[8], int count, const std::byte* columns, int64_t column_bytes,
                             const typename F::Table& table, std::byte* ring) {
  float y[C];
  if constexpr (kFloats) {
    float_tile<F, C>(tile.data, tile.scales, product.inputs, columns, column_bytes, table, ring, y);
  } else {
    int8_tile<F, C>(tile.data, tile.scales, product.inputs, columns, column_bytes, table, ring, y);
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    if (c < count && lane < 16) matrix.out[slots[c] * product.rows + tile.row + lane] = y[c] * tile.multiplier;
  }
}

// Block x: kWarps tiles of rows of the expert of group y, of matrix z.
template <typename F, bool kFloats>
__global__ void __launch_bounds__(kThreads)
    multiply_units(Product product, typename F::Codebook book, int most, int64_t column_bytes) {
  follow();
  const Group group = product.grouping.groups[blockIdx.y];
  if (group.count == 0) return;
  extern __shared__ __align__(16) std::byte shared[];
  using Table = typename F::Table;
  auto& table = *reinterpret_cast<Table*>(shared);
  std::byte* columns = shared + (sizeof(Table) + 15) / 16 * 16;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::byte* ring = columns + most * column_bytes + warp * (kStages<F> * F::kBytes);
  make_table<F>(book, table);
  const Product::Matrix& matrix = product.matrices[blockIdx.z];
  const std::byte* record = product.records + group.expert * product.record_bytes;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kTileRows;
  const int64_t tile_bytes = product.inputs / F::kInputs * F::kBytes;
  Tile tile{record + matrix.offset + row / kTileRows * tile_bytes, nullptr, 1.0F, row};
  if constexpr (std::is_same_v<F, Fp8>) {
    tile.scales =
        reinterpret_cast<const uint16_t*>(record + matrix.scales_offset) + row / 128 * ((product.inputs + 127) / 128);
  }
  if constexpr (std::is_same_v<F, Nvfp4>) {
    tile.multiplier = product.scalars[group.expert * product.scalars_each + matrix.which];
  }
  for (int first = 0; first < group.count; first += most) {
    const int count = min(most, group.count - first);
    int64_t slots[8];
    __syncthreads();
    for (int c = 0; c < 8; ++c) {
      slots[c] = group.first + first + min(c, count - 1);
      if (c >= count) continue;
      const int64_t at = matrix.columns.by_token ? product.grouping.order[slots[c]] / product.top_k : slots[c];
      const auto* from = reinterpret_cast<const uint4*>(matrix.columns.data + at * matrix.columns.stride);
      auto* to = reinterpret_cast<uint4*>(columns + c * column_bytes);
      for (int i = static_cast<int>(threadIdx.x); i < column_bytes / 16; i += kThreads) to[i] = from[i];
    }
    __syncthreads();
    if (row >= product.rows) continue;
    if (count == 1) {
      tile_columns<F, kFloats, 1>(product, matrix, tile, slots, 1, columns, column_bytes, table, ring);
    } else if (count == 2) {
      tile_columns<F, kFloats, 2>(product, matrix, tile, slots, 2, columns, column_bytes, table, ring);
    } else if (count <= 4) {
      tile_columns<F, kFloats, 4>(product, matrix, tile, slots, count, columns, column_bytes, table, ring);
    } else {
      tile_columns<F, kFloats, 8>(product, matrix, tile, slots, count, columns, column_bytes, table, ring);
    }
  }
}

template <typename F, bool kFloats>
void launch(const Context& context, const Product& product) {
  const int64_t column_bytes = product.matrices[0].columns.stride;
  const int64_t fixed = (static_cast<int64_t>(sizeof(typename F::Table)) + 15) / 16 * 16 +
                        static_cast<int64_t>(kWarps) * kStages<F> * F::kBytes;
  int most = 8;
  while (most > 1 && fixed + most * column_bytes > kMostShared) most /= 2;
  const int64_t bytes = fixed + most * column_bytes;
  const dim3 grid(static_cast<unsigned>(base::ceil_div(product.rows, kWarps * kTileRows)),
                  static_cast<unsigned>(product.grouping.bound), static_cast<unsigned>(product.count));
  allow_shared(multiply_units<F, kFloats>, bytes);
  launch_following(context, multiply_units<F, kFloats>, grid, kThreads, bytes, product, codebook<F>(), most,
                   column_bytes);
}

// BF16 weights, row-major: a warp a row.
__global__ void __launch_bounds__(kThreads) multiply_bf16(Product product) {
  follow();
  const Group group = product.grouping.groups[blockIdx.y];
  const Product::Matrix& matrix = product.matrices[blockIdx.z];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= product.rows) return;
  const auto* weights =
      reinterpret_cast<const uint16_t*>(product.records + group.expert * product.record_bytes + matrix.offset) +
      row * product.inputs;
  for (int64_t slot = group.first; slot < group.first + group.count; ++slot) {
    const int64_t at = matrix.columns.by_token ? product.grouping.order[slot] / product.top_k : slot;
    const auto* x = reinterpret_cast<const float*>(matrix.columns.data + at * matrix.columns.stride);
    float sum = 0;
    for (int64_t i = lane; i < product.inputs; i += 32) {
      sum = fmaf(__uint_as_float(static_cast<uint32_t>(weights[i]) << 16), x[i], sum);
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, distance);
    if (lane == 0) matrix.out[slot * product.rows + row] = sum;
  }
}

}  // namespace

InputOrder input_order(ExpertFormat format) {
  switch (format) {
    case ExpertFormat::kQ2_0:
      return InputOrder::kFourApart;
    case ExpertFormat::kIq4nl:
    case ExpertFormat::kIq4xs:
      return InputOrder::kNibbles;
    default:
      return InputOrder::kNatural;
  }
}

void multiply_int8(const Context& context, ExpertFormat format, const Product& product) {
  switch (format) {
    case ExpertFormat::kFp8Block:
      return launch<Fp8, false>(context, product);
    case ExpertFormat::kIq2s:
      return launch<Iq2s, false>(context, product);
    case ExpertFormat::kIq3xxs:
      return launch<Iq3xxs, false>(context, product);
    case ExpertFormat::kIq3s:
      return launch<Iq3s, false>(context, product);
    case ExpertFormat::kIq4xs:
      return launch<Iq4xs, false>(context, product);
    case ExpertFormat::kIq4nl:
      return launch<Iq4nl, false>(context, product);
    default:
      return launch<Q2_0, false>(context, product);
  }
}

void multiply_floats(const Context& context, ExpertFormat format, const Product& product) {
  switch (format) {
    case ExpertFormat::kBF16: {
      const dim3 grid(static_cast<unsigned>(base::ceil_div(product.rows, kWarps)),
                      static_cast<unsigned>(product.grouping.bound), static_cast<unsigned>(product.count));
      launch_following(context, multiply_bf16, grid, kThreads, 0, product);
      return;
    }
    case ExpertFormat::kNvfp4:
      return launch<Nvfp4, true>(context, product);
    case ExpertFormat::kFp8Block:
      return launch<Fp8, true>(context, product);
    case ExpertFormat::kIq2s:
      return launch<Iq2s, true>(context, product);
    case ExpertFormat::kIq3xxs:
      return launch<Iq3xxs, true>(context, product);
    case ExpertFormat::kIq3s:
      return launch<Iq3s, true>(context, product);
    case ExpertFormat::kIq4xs:
      return launch<Iq4xs, true>(context, product);
    case ExpertFormat::kIq4nl:
      return launch<Iq4nl, true>(context, product);
    default:
      return launch<Q2_0, true>(context, product);
  }
}

}  // namespace tandem::ops::cuda::expert
