// hyper_inject and hyper_mix of at most eight columns in two launches.
//
// Eight columns are the width of a tensor-core tile, so that all of them cost what one does, and none sees another. A
// warp takes 16 rows of weights in windows of 32 inputs: lane (g, t) has the 8 inputs from 8 t on of rows g and g + 8,
// and the columns' values are taken in the same order, so that the window is two tiles whose inputs are permuted alike
// on both sides. Weights are asked for before anything else is waited for, and wait in shared memory. The code is kept
// short: it runs once a launch, and fetching it takes as long as the weights do. Nothing should be spilled: what was
// comes from far away, too.
//
// What the last block answered is added on the way. `down` needs the sums and leaves the state as it is, for many
// blocks read the same part of it; `up`, of whose blocks each has a part for itself, forms the sums again and keeps
// them.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/hyper_few.cuh"
#include "ops/cuda/hyper_quick.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/mailbox.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kStreams = 4;
constexpr int kColumns = 8;
constexpr int kWindow = 32;
constexpr int kParts = 3;  // BF16 values that together are an FP32 one

// A block multiplies by half of a stream, in pieces of four windows; a lane has four values of a piece.
constexpr int kPieces = 10;
constexpr int kPieceWindows = 4;
constexpr int kPieceInputs = kPieceWindows * kWindow;
constexpr int kSlice = kPieces * kPieceInputs;  // places of a stream
constexpr int kSlices = 2 * kStreams;           // a cluster
constexpr int kDownThreads = kPieces * 32;      // a warp a piece
constexpr int kDownRows = 16;
constexpr int kSquares = kDownRows;  // the row of the squares' sums, behind those of the products'
// BF16 values from a column's inputs to the next one's in shared memory, and from a row's to the next one's: two fill
// all banks.
constexpr int kInputStride = kPieceInputs + kWindow;
constexpr int kRowStride = kSlice + kWindow;
constexpr int kDownBytes = kDownRows * kRowStride * 2;

constexpr int kUpThreads = kStreams * 32;
constexpr int kUpRows = 16;
constexpr int kUpWindows = 10;
// Two blocks of either kernel, and beside them a cache for the kernels around that have their weights in registers.
constexpr int kSharedPercent = 50;
constexpr int kMostLowRank = kUpWindows * kWindow;
constexpr int kUpStride = kMostLowRank + kWindow;
constexpr int kUpBytes = kStreams * kUpRows * kUpStride * 2;

struct FewColumns {
  HyperMix mix;
  int lowrank;
  float share;         // 1 / hidden
  int parts;           // BF16 values to an input of `down` and `up`
  float* scales;       // [streams, kColumns]: 1 / rms
  __nv_bfloat16* low;  // [parts, kColumns, kMostLowRank]
};

__device__ inline float add_squares(float4 x, float sum) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}

struct Rows {
  uint4 low, high;  // 8 inputs of rows g and g + 8
};
__device__ inline void multiply_window(const Rows& rows, uint4 column, float (&sum)[4]) {
  multiply_bf16(sum, rows.low.x, rows.high.x, rows.low.y, rows.high.y, column.x, column.y);
  multiply_bf16(sum, rows.low.z, rows.high.z, rows.low.w, rows.high.w, column.z, column.w);
}
// The sums of a warp's chains into [row][column].
__device__ inline void store_sums(const float (&sums)[4][4], float (*to)[kColumns]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  float sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
  *reinterpret_cast<float2*>(&to[g][2 * t]) = {sum[0], sum[1]};
  *reinterpret_cast<float2*>(&to[g + 8][2 * t]) = {sum[2], sum[3]};
}

// The BF16 nearest to four values, and what is missing to these.
__device__ inline uint2 nearest(float4 x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  return {pair_of(low.x, low.y), pair_of(high.x, high.y)};
}
__device__ inline float4 missing(float4 x, uint2 nearest) {
  return {x.x - __uint_as_float(nearest.x << 16), x.y - __uint_as_float(nearest.x & 0xffff0000U),
          x.z - __uint_as_float(nearest.y << 16), x.w - __uint_as_float(nearest.y & 0xffff0000U)};
}

// Four places of one stream from `at` on, of all columns. Columns that are not there are the last one again, so that
// all loads are under way at once.
template <int kMost>
__device__ inline void load_state(const FewColumns& args, int stream, int at, float4 (&x)[kMost]) {
  const auto last = static_cast<int>(args.mix.tokens) - 1;
  const auto hidden = static_cast<int>(args.mix.hidden);
#pragma unroll
  for (int c = 0; c < kMost; ++c) x[c] = load4(args.mix.state + (min(c, last) * kStreams + stream) * hidden + at);
  if (args.mix.y == nullptr) return;
  float4 y[kMost];
#pragma unroll
  for (int c = 0; c < kMost; ++c) y[c] = load4(args.mix.y + min(c, last) * hidden + at);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float factors = args.mix.factors[min(lane % kMost, last) * kStreams + stream];
#pragma unroll
  for (int c = 0; c < kMost; ++c) {
    const float factor = kMost == 1 ? factors : __shfl_sync(kWholeWarp, factors, c);
    x[c] = {fmaf(y[c].x, factor, x[c].x), fmaf(y[c].y, factor, x[c].y), fmaf(y[c].z, factor, x[c].z),
            fmaf(y[c].w, factor, x[c].w)};
  }
}

// The products of a piece of `rows` with `x`, which is taken apart into `parts` BF16 values. By a warp.
template <int kMost>
__device__ inline void multiply(const __nv_bfloat16* rows, float4 (&x)[kMost], int parts, __nv_bfloat16* inputs,
                                float (*to)[kColumns]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sums[kPieceWindows][4] = {};
  // Columns that are not there have any numbers: their products are theirs alone.
  const __nv_bfloat16* from = inputs + min(lane / 4, kMost - 1) * kInputStride + 8 * (lane % 4);
  rows += lane / 4 * kRowStride + 8 * (lane % 4);
#pragma unroll 1
  for (int p = 0; p < parts; ++p) {
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kMost; ++c) {
      const uint2 part = nearest(x[c]);
      *reinterpret_cast<uint2*>(inputs + c * kInputStride + 4 * lane) = part;
      if (parts > 1) x[c] = missing(x[c], part);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPieceWindows; ++i) {
      const Rows window = {*reinterpret_cast<const uint4*>(rows + i * kWindow),
                           *reinterpret_cast<const uint4*>(rows + 8 * kRowStride + i * kWindow)};
      multiply_window(window, *reinterpret_cast<const uint4*>(from + i * kWindow), sums[i]);
    }
  }
  store_sums(sums, to);
}

using Sums = float[kDownRows + 1][kColumns];  // of rows, then of squares

// Of row `row` of the block in column `column`: a stream's values share the scale of its norm, and so the sum over
// streams is that of what their slices' sums give with the stream's scale. A whole warp asks, four rows of all columns.
__device__ inline float scaled_sum(const FewColumns& args, const Sums (&slices)[kSlices], int row, int column,
                                   bool stores) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int stream = lane / kColumns;
  const float squares = slices[2 * stream][kSquares][column] + slices[2 * stream + 1][kSquares][column];
  const float own = quick_inverse_rms(squares, args.share, args.mix.eps);
  if (stores) args.scales[lane] = own;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kStreams; ++s) {
    const float scale = __shfl_sync(kWholeWarp, own, s * kColumns + column);
    sum = fmaf(slices[2 * s][row][column] + slices[2 * s + 1][row][column], scale, sum);
  }
  return sum * (1.0F / kStreams);
}

// Blocks (groups of 16 rows, the last of `inject`; slices, which are a cluster): a slice's products, summed by the
// cluster's first block. The squares come along with the products, and the norm's scale is applied to the sums.
// kMost columns at most.
template <int kMost>
__global__ void __launch_bounds__(kDownThreads, 2) down_kernel(const FewColumns args) {
  extern __shared__ __align__(128) __nv_bfloat16 weights[];  // [kDownRows, kRowStride]
  __shared__ __align__(16) __nv_bfloat16 inputs[kPieces][kMost * kInputStride];
  __shared__ Sums pieces[kPieces];
  __shared__ Sums slices[kSlices];
  __shared__ Mailbox box;
  __shared__ Arrival arrival;
  const auto tokens = static_cast<int>(args.mix.tokens);
  const int warp = __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x) / 32, 0);  // known to be the same in all lanes
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto hidden = static_cast<int>(args.mix.hidden);
  const bool injects = static_cast<int>(blockIdx.x) == (args.lowrank + kDownRows - 1) / kDownRows;
  const int count = injects ? kStreams : args.lowrank;
  const int first_row = injects ? 0 : static_cast<int>(blockIdx.x) * kDownRows;
  const auto slice = static_cast<int>(blockIdx.y);
  const int stream = slice / 2;
  const int first_input = slice % 2 * kSlice;
  if (warp == 0) {
    const int bytes = 2 * max(min(hidden - first_input, kSlice), 0);
    if (lane == 0) {
      arrival.open();
      arrival.expect(kDownRows * bytes);
      box.open(kSlices * (kDownRows + 1) * tokens * 4);
    }
    __syncwarp();
    // Rows behind the last one are that one again, and their sums are not used.
    const auto* matrix = static_cast<const uint16_t*>(injects ? args.mix.w.inject.data : args.mix.w.down.data);
    const int row = min(first_row + lane, count - 1);
    if (lane < kDownRows && bytes > 0) {
      arrival.ask(weights + lane * kRowStride, matrix + (row * kStreams + stream) * hidden + first_input, bytes);
    }
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");  // nothing but barriers was written
  const int first = first_input + warp * kPieceInputs;
  const bool here = first < hidden;
  const int at = (here ? first : 0) + 4 * lane;
  const float4 weight = load4(args.mix.w.norm + stream * hidden + at);
  const int row = static_cast<int>(threadIdx.x) / kColumns;
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  __syncthreads();  // the barriers are there
  const int parts = injects ? kParts : args.parts;
  await_previous();
  let_next_start();  // whose weights would take from the rate of what has not ended

  float4 x[kMost];
  load_state(args, stream, at, x);
  float squares[kMost];
#pragma unroll
  for (int c = 0; c < kMost; ++c) {
    if (!here) x[c] = {0, 0, 0, 0};
    squares[c] = add_squares(x[c], 0);
    x[c] = {x[c].x * (weight.x + 1.0F), x[c].y * (weight.y + 1.0F), x[c].z * (weight.z + 1.0F),
            x[c].w * (weight.w + 1.0F)};
  }
  const float all_squares = sum_of_warp<kMost>(squares);
  if (lane % (32 / kMost) == 0) pieces[warp][kSquares][lane / (32 / kMost)] = all_squares;
  arrival.await();
  multiply(weights + warp * kPieceInputs, x, here ? parts : 0, inputs[warp], pieces[warp]);
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // the first block's mailbox is open
  __syncthreads();
  if (row > kDownRows) return;
  if (column < tokens) {
    float sum = pieces[0][row][column];
#pragma unroll
    for (int other = 1; other < kPieces; ++other) sum += pieces[other][row][column];
    box.send(&slices[slice][row][column], 0, sum);
  }
  if (slice != 0 || warp >= kDownRows * kColumns / 32) return;
  box.receive();
  const float sum = scaled_sum(args, slices, row, column, blockIdx.x == 0 && warp == 0);
  if (column >= tokens || first_row + row >= count) return;
  const float part = quick_sigmoid(sum);
  if (injects) {
    args.mix.inject[column * kStreams + row] = 2.0F * part;
    return;
  }
  float low = sum * part;
#pragma unroll 1
  for (int p = 0; p < args.parts; ++p) {
    const __nv_bfloat16 rounded = __float2bfloat16_rn(low);
    args.low[(p * kColumns + column) * kMostLowRank + first_row + row] = rounded;
    low -= __bfloat162float(rounded);
  }
}

// Blocks of kUpRows places in a stream; warp s takes stream s.
__global__ void __launch_bounds__(kUpThreads, 4) up_kernel(const FewColumns args) {
  extern __shared__ __align__(128) __nv_bfloat16 weights[];  // [kStreams, kUpRows, kUpStride]
  __shared__ float gates[kStreams][kUpRows][kColumns];
  __shared__ Arrival arrival;
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto hidden = static_cast<int>(args.mix.hidden);
  const auto tokens = static_cast<int>(args.mix.tokens);
  const int first = static_cast<int>(blockIdx.x) * kUpRows;

  const int row = static_cast<int>(threadIdx.x) % kUpRows;
  const int column = static_cast<int>(threadIdx.x) / kUpRows;
  if (threadIdx.x == 0) {
    arrival.open();
    arrival.expect(kStreams * kUpRows * args.lowrank * 2);
    announce_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kStreams * kUpRows) {  // a row of the block's, which has its 16 places of each stream
    const int of_matrix = static_cast<int>(threadIdx.x) / kUpRows * hidden + first + row;
    arrival.ask(weights + static_cast<int>(threadIdx.x) * kUpStride,
                static_cast<const uint16_t*>(args.mix.w.up.data) + of_matrix * args.lowrank, args.lowrank * 2);
  }
  float norm[kStreams];
#pragma unroll
  for (int s = 0; s < kStreams; ++s) norm[s] = args.mix.w.norm[s * hidden + first + row];
  const __nv_bfloat16* rows = weights + (warp * kUpRows + lane / 4) * kUpStride + 8 * (lane % 4);
  const int from = column * hidden + first + row;
  await_previous();

  float x[kStreams] = {};
  float factors[kStreams] = {};
  float scales[kStreams] = {};
  float y = 0;
  float sums[4][4] = {};
#pragma unroll 1
  for (int p = 0; p < args.parts; ++p) {
    const __nv_bfloat16* low = args.low + (p * kColumns + lane / 4) * kMostLowRank + 8 * (lane % 4);
    uint4 columns[kUpWindows];
#pragma unroll
    for (int i = 0; i < kUpWindows; ++i) {
      const bool there = lane / 4 < tokens && i * kWindow < args.lowrank;
      columns[i] = there ? *reinterpret_cast<const uint4*>(low + i * kWindow) : uint4{0, 0, 0, 0};
    }
    if (p == 0 && column < tokens) {
#pragma unroll
      for (int s = 0; s < kStreams; ++s) x[s] = args.mix.state[from + (column * (kStreams - 1) + s) * hidden];
#pragma unroll
      for (int s = 0; s < kStreams; ++s) scales[s] = args.scales[s * kColumns + column];
      if (args.mix.y != nullptr) {
#pragma unroll
        for (int s = 0; s < kStreams; ++s) factors[s] = args.mix.factors[column * kStreams + s];
        y = args.mix.y[from];
      }
    }
    if (p == 0) arrival.await();
#pragma unroll
    for (int i = 0; i < kUpWindows; ++i) {
      if (i * kWindow >= args.lowrank) break;
      const Rows window = {*reinterpret_cast<const uint4*>(rows + i * kWindow),
                           *reinterpret_cast<const uint4*>(rows + 8 * kUpStride + i * kWindow)};
      multiply_window(window, columns[i], sums[i % 4]);
    }
  }
  store_sums(sums, gates[warp]);
  __syncthreads();
  if (column >= tokens) return;
  float mixed = 0;
#pragma unroll
  for (int s = 0; s < kStreams; ++s) {
    if (args.mix.y != nullptr) {
      x[s] = fmaf(y, factors[s], x[s]);
      args.mix.updated[from + (column * (kStreams - 1) + s) * hidden] = x[s];
    }
    mixed = fmaf(quick_sigmoid(gates[s][row][column]), x[s] * scales[s] * (norm[s] + 1.0F), mixed);
  }
  args.mix.x[from] = mixed * (1.0F / kStreams);
}

}  // namespace

bool takes_few_columns(const HyperMix& mix) {
  const auto fits = [](const Weight& w) {
    return w.format == WeightFormat::kBF16 && reinterpret_cast<uintptr_t>(w.data) % 16 == 0;
  };
  return mix.tokens <= kColumns && mix.streams == kStreams && mix.hidden % kPieceInputs == 0 &&
         mix.hidden <= 2 * kSlice && mix.w.down.rows % kWindow == 0 && mix.w.down.rows <= kMostLowRank &&
         by_fours(mix.hidden, mix.state, mix.w.norm, mix.y) && fits(mix.w.down) && fits(mix.w.up) &&
         (mix.inject == nullptr || fits(mix.w.inject));
}

void mix_few_columns(const Context& context, const HyperMix& mix) {
  const Scratch::Scope scope(context.scratch);
  const int parts = context.round_inputs ? 1 : kParts;
  const FewColumns args{.mix = mix,
                        .lowrank = static_cast<int>(mix.w.down.rows),
                        .share = 1.0F / static_cast<float>(mix.hidden),
                        .parts = parts,
                        .scales = context.scratch.take<float>(kStreams * kColumns),
                        .low = context.scratch.take<__nv_bfloat16>(parts * kColumns * kMostLowRank)};
  if (context.plans()) return;
  const dim3 grid(static_cast<unsigned>(base::ceil_div(args.lowrank, kDownRows) + (mix.inject != nullptr ? 1 : 0)),
                  kSlices);
  const auto launch_down = [&]<int kMost>(std::integral_constant<int, kMost>) {
    allow_shared(down_kernel<kMost>, kDownBytes);
    prefer_shared(down_kernel<kMost>, kSharedPercent);
    launch_following_clusters(context, dim3(1, kSlices), down_kernel<kMost>, grid, kDownThreads, kDownBytes, args);
  };
  if (mix.tokens == 1) {
    launch_down(std::integral_constant<int, 1>());
  } else if (mix.tokens <= 4) {
    launch_down(std::integral_constant<int, 4>());
  } else {
    launch_down(std::integral_constant<int, kColumns>());
  }
  TANDEM_CUDA_LAUNCHED("hyper_mix down");
  allow_shared(up_kernel, kUpBytes);
  prefer_shared(up_kernel, kSharedPercent);
  launch_following(context, up_kernel, dim3(static_cast<unsigned>(mix.hidden / kUpRows)), kUpThreads, kUpBytes, args);
  TANDEM_CUDA_LAUNCHED("hyper_mix up");
}

}  // namespace tandem::ops::cuda
