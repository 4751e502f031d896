// Products on the ordinary cores: exact inputs, and whatever the tensor cores' ways do not take.
//
// Few columns: a block of 256 threads takes four rows and all columns; its threads stride over the inputs, four at a
// time, and add in a fixed tree. Cost: the weights' bytes once; x is read from the second-level cache once a block.
// Many columns: tiles of 64 rows x 64 columns, 16 inputs at a time through shared memory; 4 x 4 sums a thread.
// Matrices of few rows would leave the card idle: up to eight blocks, a cluster, share the inputs of a tile then, and
// add their sums in order of the inputs. For few columns the shape of the matrix alone says how many.
#include <cooperative_groups.h>

#include "ops/cuda/dense_decode.cuh"
#include "ops/cuda/dense_paths.h"
#include "ops/cuda/follow.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda::dense {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 4;

struct Arguments {
  Product product;
  int splits = 1;  // blocks of a cluster
};

// The inputs that a block sums over, of part blockIdx.z of a product and split blockIdx.x % splits; and where sums go.
struct Part {
  int64_t begin, end;
  float* y;
};
__device__ inline Part part_of(const Arguments& a) {
  const Product& p = a.product;
  Part part{0, p.w.inputs, p.y};
  if (p.upper != nullptr) {
    const int64_t middle = p.w.inputs / 2;
    part = blockIdx.z == 0 ? Part{0, middle, p.y} : Part{middle, p.w.inputs, p.upper};
  }
  const int64_t each = ((part.end - part.begin + a.splits - 1) / a.splits + 3) / 4 * 4;
  part.begin += blockIdx.x % a.splits * each;
  if (part.begin + each < part.end) part.end = part.begin + each;
  return part;
}

// The sum over a cluster's blocks of an element of shared memory.
__device__ inline float sum_of_cluster(const cooperative_groups::cluster_group& cluster, float* element, int splits) {
  float sum = *cluster.map_shared_rank(element, 0);
  for (int split = 1; split < splits; ++split) sum += *cluster.map_shared_rank(element, split);
  return sum;
}

template <bool kWide>
__device__ inline void load_inputs(const float* x, int64_t input, int64_t end, bool round, float (&out)[4]) {
  if constexpr (kWide) {
    const float4 four = *reinterpret_cast<const float4*>(x + input);
    out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = input + i < end ? x[input + i] : 0.0F;
  }
  if (round) {
#pragma unroll
    for (float& value : out) value = round_to_bf16(value);
  }
}

template <int kColumns>
__device__ inline void add_over_block(float (&sum)[kRows][kColumns], const Arguments& a, const Part& part,
                                      int64_t first_row) {
  __shared__ float sums[kRows * kColumns][kWarps];
  __shared__ float block_sums[kRows * kColumns];
  const Product& p = a.product;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float value = sum[r][c];
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
      if (lane == 0) sums[r * kColumns + c][warp] = value;
    }
  }
  __syncthreads();
  const int element = threadIdx.x;
  if (element < kRows * kColumns) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) total += sums[element][i];
    block_sums[element] = total;
  }
  const auto cluster = cooperative_groups::this_cluster();
  if (a.splits > 1) cluster.sync();
  const int64_t row = first_row + element / kColumns;
  const int64_t column = element % kColumns;
  if (element < kRows * kColumns && blockIdx.x % a.splits == 0 && row < p.w.rows && column < p.tokens) {
    part.y[column * p.w.rows + row] = finish_sum(p.w, row, sum_of_cluster(cluster, block_sums + element, a.splits));
  }
  if (a.splits > 1) cluster.sync();  // others read this block's sums
}

template <WeightFormat kFormat, bool kWide, int kColumns>
__global__ void __launch_bounds__(kThreads) exact_rows(Arguments a) {
  await_previous();
  let_next_start();  // as in dense_few_rows.cu
  const Product& p = a.product;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / a.splits) * kRows;
  const Part part = part_of(a);
  float sum[kRows][kColumns] = {};
  for (int64_t input = part.begin + 4 * threadIdx.x; input < part.end; input += 4 * kThreads) {
    float weight[kRows][4];
    float x[kColumns][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first_row + r < p.w.rows ? first_row + r : p.w.rows - 1;
      decode_up_to_four<kFormat, kWide>(p.w, row, input, part.end, weight[r]);
    }
#pragma unroll
    for (int c = 0; c < kColumns;
         ++c) {  // columns that are not there: the last, so that all loads are under way at once
      const int64_t column = c < p.tokens ? c : p.tokens - 1;
      load_inputs<kWide>(p.x + column * p.w.inputs, input, part.end, p.round, x[c]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[r][c] = fmaf(weight[r][i], x[c][i], sum[r][c]);
      }
    }
  }
  add_over_block<kColumns>(sum, a, part, first_row);
}

constexpr int kTile = 64;
constexpr int kStep = 16;

template <WeightFormat kFormat, bool kWide>
__global__ void __launch_bounds__(kThreads) exact_tiles(Arguments a) {
  await_previous();
  let_next_start();  // as in dense_few_rows.cu
  __shared__ float4 weights[kStep][kTile / 4 + 1];
  __shared__ float4 inputs[kStep][kTile / 4 + 1];
  __shared__ float sums[kTile * kTile];  // [column, row]
  const Product& p = a.product;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x / a.splits) * kTile;
  const Part part = part_of(a);
  const int line = threadIdx.x / 4;
  const int four = threadIdx.x % 4 * 4;
  const int64_t row = first_row + line < p.w.rows ? first_row + line : p.w.rows - 1;
  const int64_t column = first_column + line < p.tokens ? first_column + line : p.tokens - 1;
  const int row_group = threadIdx.x % 16;
  const int column_group = threadIdx.x / 16;
  float sum[4][4] = {};
  float weight[4];
  float x[4];
  const auto load = [&](int64_t input) {
    if (input < part.end) {
      decode_up_to_four<kFormat, kWide>(p.w, row, input, part.end, weight);
      load_inputs<kWide>(p.x + column * p.w.inputs, input, part.end, p.round, x);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) weight[i] = x[i] = 0;
    }
  };
  load(part.begin + four);
  for (int64_t step = part.begin; step < part.end; step += kStep) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      reinterpret_cast<float*>(weights[four + i])[line] = weight[i];
      reinterpret_cast<float*>(inputs[four + i])[line] = x[i];
    }
    __syncthreads();
    load(step + kStep + four);  // the next step's
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      const float4 w4 = weights[k][row_group];
      const float4 x4 = inputs[k][column_group];
      const float w_of[4] = {w4.x, w4.y, w4.z, w4.w};
      const float x_of[4] = {x4.x, x4.y, x4.z, x4.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[c][r] = fmaf(w_of[r], x_of[c], sum[c][r]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    *reinterpret_cast<float4*>(sums + (4 * column_group + c) * kTile + 4 * row_group) =
        make_float4(sum[c][0], sum[c][1], sum[c][2], sum[c][3]);
  }
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  for (int i = static_cast<int>(threadIdx.x + kThreads * (blockIdx.x % a.splits)); i < kTile * kTile;
       i += kThreads * a.splits) {
    const int64_t to_row = first_row + i % kTile;
    const int64_t to_column = first_column + i / kTile;
    if (to_row < p.w.rows && to_column < p.tokens) {
      part.y[to_column * p.w.rows + to_row] = finish_sum(p.w, to_row, sum_of_cluster(cluster, sums + i, a.splits));
    }
  }
  cluster.sync();  // others read this block's sums
}

// Blocks that share a tile's inputs: as many as the card has room for, of at least `least` inputs each.
int splits_of(int64_t tiles, int64_t inputs, int64_t least) {
  constexpr int kMostSplits = 8;  // blocks of a cluster on every card
  constexpr int64_t kEnoughBlocks = 264;
  int splits = 1;
  while (splits < kMostSplits && 2 * splits * tiles <= kEnoughBlocks && inputs / (2 * splits) >= least) splits *= 2;
  return splits;
}

void launch_clusters(const Context& context, void (*kernel)(Arguments), dim3 grid, const Arguments& arguments) {
  const auto splits = static_cast<unsigned>(arguments.splits);
  launch_following_clusters(context, dim3(splits), kernel, dim3(grid.x * splits, grid.y, grid.z), kThreads, 0,
                            arguments);
}

template <WeightFormat kFormat, bool kWide>
void launch_exact(const Context& context, const Product& p) {
  const unsigned parts = p.upper != nullptr ? 2 : 1;
  const int64_t inputs = p.w.inputs / parts;
  if (p.tokens > kMostFewColumns) {
    const dim3 grid(static_cast<unsigned>((p.tokens + kTile - 1) / kTile),
                    static_cast<unsigned>((p.w.rows + kTile - 1) / kTile), parts);
    const int64_t tiles = int64_t{grid.x} * grid.y * grid.z;
    return launch_clusters(context, exact_tiles<kFormat, kWide>, grid, {p, splits_of(tiles, inputs, 16 * kStep)});
  }
  const dim3 grid(static_cast<unsigned>((p.w.rows + kRows - 1) / kRows), 1, parts);
  const Arguments arguments{p, splits_of(int64_t{grid.x} * grid.z, inputs, 4 * kThreads)};
  if constexpr (kWide) {
    if (p.tokens == 1) return launch_clusters(context, exact_rows<kFormat, kWide, 1>, grid, arguments);
    if (p.tokens <= 4) return launch_clusters(context, exact_rows<kFormat, kWide, 4>, grid, arguments);
  }
  launch_clusters(context, exact_rows<kFormat, kWide, kMostFewColumns>, grid, arguments);
}

}  // namespace

void exact_linear(const Context& context, const Product& p) {
  if (context.plans()) return;
  const bool middle_serves = p.upper == nullptr || p.w.inputs % 8 == 0;
  const bool wide = wide_loads_serve(p.w) && middle_serves && aligned_to(p.x, 16);
  with_format(p.w.format, [&](auto tag) {
    constexpr WeightFormat kFormat = decltype(tag)::kValue;
    if (wide) {
      launch_exact<kFormat, true>(context, p);
    } else {
      launch_exact<kFormat, false>(context, p);
    }
  });
}

}  // namespace tandem::ops::cuda::dense
