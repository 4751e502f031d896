// Canonical NVFP4 products of one matrix: a warp has a tile of 16 rows and all its inputs.
#include "ops/cuda/experts_nvfp4.cuh"

namespace tandem::ops::cuda::expert {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kStages = 8;
constexpr int64_t kMostShared = 96 << 10;

__device__ void fetch_unit(std::byte* to, const std::byte* tile, int64_t unit, int64_t units, int lane) {
  if (unit < units) {
    const std::byte* from = tile + unit * kNvfp4UnitBytes;
    copy_16(shared_address(to + lane * 16), from + lane * 16);
    if (lane < 4) copy_16(shared_address(to + 512 + lane * 16), from + 512 + lane * 16);
  }
  commit_copies();
}

template <int C>
__device__ void tile_columns(const std::byte* tile, int64_t units, const Nvfp4Inputs* columns, std::byte* ring,
                             Nvfp4Sums<C>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  sums.clear();
  const Nvfp4Tables tables = Nvfp4Tables::make();
  for (int s = 0; s < kStages - 1; ++s) fetch_unit(ring + s * kNvfp4UnitBytes, tile, s, units, lane);
  for (int64_t u = 0; u < units; ++u) {
    const int64_t ahead = u + kStages - 1;
    fetch_unit(ring + ahead % kStages * kNvfp4UnitBytes, tile, ahead, units, lane);
    await_copies<kStages - 1>();
    __syncwarp();
    sums.add_unit(tables, ring + u % kStages * kNvfp4UnitBytes, lane, columns + u, static_cast<int>(units));
    __syncwarp();
  }
  sums.gather();
}

template <int C>
__device__ void store_columns(const Product& product, const Product::Matrix& matrix, const Group& group, int64_t tile,
                              int first, int count, const Nvfp4Inputs* columns, std::byte* ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t units = product.inputs / kNvfp4UnitInputs;
  const std::byte* data =
      product.records + group.expert * product.record_bytes + matrix.offset + tile * units * kNvfp4UnitBytes;
  Nvfp4Sums<C> sums;
  tile_columns<C>(data, units, columns, ring, sums);
  const float weight_scale = product.scalars[group.expert * product.scalars_each + matrix.which];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    if (c >= count || lane >= 8) continue;
    const int64_t slot = group.first + first + c;
    const int64_t at = matrix.columns.by_token ? product.grouping.order[slot] / product.top_k : slot;
    const float input_scale = matrix.columns.scales[at];
    float* out = matrix.out + slot * product.rows + tile * kTileRows + 2 * lane;
    out[0] = nvfp4_scaled(sums.rows[0][c], weight_scale, input_scale);
    out[1] = nvfp4_scaled(sums.rows[1][c], weight_scale, input_scale);
  }
}

// Block x: kWarps tiles of the expert of group y, of matrix z.
__global__ void __launch_bounds__(kThreads) multiply_tiles(Product product, int most) {
  follow();
  const Group group = product.grouping.groups[blockIdx.y];
  if (group.count == 0) return;
  extern __shared__ __align__(16) std::byte shared[];
  const Product::Matrix& matrix = product.matrices[blockIdx.z];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t column_bytes = matrix.columns.stride;
  auto* columns = reinterpret_cast<Nvfp4Inputs*>(shared);
  std::byte* ring = shared + most * column_bytes + warp * (kStages * kNvfp4UnitBytes);
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  for (int first = 0; first < group.count; first += most) {
    const int count = min(most, group.count - first);
    __syncthreads();
    for (int c = 0; c < count; ++c) {
      const int64_t slot = group.first + first + c;
      const int64_t at = matrix.columns.by_token ? product.grouping.order[slot] / product.top_k : slot;
      const auto* from = reinterpret_cast<const uint4*>(matrix.columns.data + at * column_bytes);
      auto* to = reinterpret_cast<uint4*>(shared + c * column_bytes);
      for (int i = static_cast<int>(threadIdx.x); i < column_bytes / 16; i += kThreads) to[i] = from[i];
    }
    __syncthreads();
    if (tile * kTileRows >= product.rows) continue;
    if (count == 1) {
      store_columns<1>(product, matrix, group, tile, first, count, columns, ring);
    } else if (count == 2) {
      store_columns<2>(product, matrix, group, tile, first, count, columns, ring);
    } else if (count <= 4) {
      store_columns<4>(product, matrix, group, tile, first, count, columns, ring);
    } else {
      store_columns<8>(product, matrix, group, tile, first, count, columns, ring);
    }
  }
}

}  // namespace

void multiply_nvfp4(const Context& context, const Product& product) {
  const int64_t column_bytes = product.matrices[0].columns.stride;
  constexpr int64_t kRings = static_cast<int64_t>(kWarps) * kStages * kNvfp4UnitBytes;
  int most = 8;
  while (most > 1 && kRings + most * column_bytes > kMostShared) most /= 2;
  const int64_t bytes = kRings + most * column_bytes;
  const dim3 grid(static_cast<unsigned>(base::ceil_div(product.rows, kWarps * kTileRows)),
                  static_cast<unsigned>(product.grouping.bound), static_cast<unsigned>(product.count));
  allow_shared(multiply_tiles, bytes);
  launch_following(context, multiply_tiles, grid, kThreads, bytes, product, most);
}

}  // namespace tandem::ops::cuda::expert
