// Attention of few query rows over 8-bit keys and values, in whole numbers on tensor cores.
//
// A block has one kv head of a unit and eight or sixteen query rows that share it. Its four warps are streams that have
// nothing to do with each other until they end: stream s takes the list's steps of 32 tokens s, s + 4, …, fetches their
// keys and values into memory of its own and keeps its own softmax, and in the end the four are added up in order.
//
// Scores: a query row, by its largest magnitude, is whole numbers of 16 bits: two codes of 8 bits, which lie in rows r
// and r + 8 of the left operand, so that one product with the keys' codes as they are gives both parts of a sum to the
// same lane. Sums over the 64 dimensions of a scale are exact; the scale multiplies them in FP32. Values: codes become
// FP16 exactly, and meet weights times their scales in FP16; a power of two near the largest scale so far keeps these
// in its range. What this rounds: 2^-16 of the row's largest query number; 2^-12 of each weight and 2^-25 of the
// largest one's product.
//
// No sum depends on which rows lie beside each other, or on how far the list goes on behind a row's own end: what a row
// does not see adds zeros.
#include "ops/cuda/attention_answer.cuh"
#include "ops/cuda/attention_code_tiles.cuh"
#include "ops/cuda/attention_codes.cuh"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

// Where the block's rows lie in queries and answers; -1 where there is none.
template <int kRows>
__device__ __forceinline__ void find_places(const AttentionArgs& args, const Work& work, int (&places)[kRows]) {
  const auto r = static_cast<int>(threadIdx.x);
  if (r < kRows) places[r] = work.column_of(args, r) >= 0 ? static_cast<int>(work.query_row(args, r)) : -1;
}

// Writes the block's queries as left operands, [tiles, input steps, lanes], and what a whole number of each row stands
// for. A warp makes a row after the other; rows that there are not become zeros.
template <typename S>
__device__ __forceinline__ void load_queries(const AttentionArgs& args, const int (&places)[S::kRows], char* shared) {
  constexpr int each = (S::kDims + 127) / 128;
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int r = threadIdx.x / 32; r < S::kRows; r += kStreams) {
    const bool held = places[r] >= 0;
    const float* row = args.q + (held ? static_cast<int64_t>(places[r]) * args.kv.head_dim : 0);
    float4 q[each];
    uint32_t most = 0x0DA24260u;  // 1e-30
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int d = 4 * (lane + 32 * i);
      q[i] = held && d < args.kv.head_dim ? *reinterpret_cast<const float4*>(row + d) : float4{};
      const auto magnitude = [](float x) { return __float_as_uint(x) & 0x7FFFFFFFu; };  // those of NaN are the largest
      most = max(most, max(max(magnitude(q[i].x), magnitude(q[i].y)), max(magnitude(q[i].z), magnitude(q[i].w))));
    }
    const float largest = __uint_as_float(__reduce_max_sync(kAll, most));
    if (lane == 0) reinterpret_cast<float*>(shared + S::kUnits)[r] = largest / kTwoCodesMost;
    const float factor = kTwoCodesMost / largest;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int d = 4 * (lane + 32 * i);
      if (d >= S::kDims) continue;
      const TwoCodes codes = two_codes(q[i], factor);
      const int operand = (r / 8 * S::kQuerySteps + d / 32) * 32 + r % 8 * 4 + d % 16 / 4;
      *reinterpret_cast<uint2*>(shared + S::kQueries + operand * 16 + d % 32 / 16 * 8) =
          make_uint2(codes.high, codes.low);
    }
  }
}

// Products of the queries with a step's keys, times the keys' scales.
template <typename S>
__device__ __forceinline__ void score(const char* slot, const char* queries, float (&scores)[S::kTiles][kMine]) {
  const int lane = threadIdx.x % 32;
  const uint32_t first = each_round(shared_address(slot) + swizzled<S::kChunks>(lane % 8, lane / 8) * 16);
  Scales<S> scales;
#pragma unroll
  for (int m = 0; m < S::kTiles; ++m) {
#pragma unroll
    for (int j = 0; j < kMine; ++j) scores[m][j] = 0;
  }
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g) {
    if (g % Scales<S>::kGroupsAtOnce == 0) scales.load(slot, g);
    uint4 q[S::kTiles][2];
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        q[m][s] = reinterpret_cast<const uint4*>(queries)[(m * S::kQuerySteps + 2 * g + s) * 32 + lane];
      }
    }
#pragma unroll
    for (int n = 0; n < kMine / 2; ++n) {
      uint32_t keys[4];
      load_matrices(keys, chunk_of(first, g, 0) + 8 * n * S::kDims);
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m) {
        int sums[4] = {};
        multiply_codes(sums, q[m][0], keys[0], keys[1]);
        multiply_codes(sums, q[m][1], keys[2], keys[3]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          scores[m][2 * n + i] =
              fmaf(static_cast<float>(256 * sums[i] + sums[2 + i]), scales.of(2 * n + i, g), scores[m][2 * n + i]);
        }
      }
    }
  }
}

// The softmax of rows 8 m + lane / 4 of a stream. Weights are relative to a score near the largest so far, and values
// to a power of two near their largest scale so far: both stay until they are left far behind, for what is summed is
// multiplied whenever one changes. Weights times scales then stay below 2^14.
template <typename S>
struct States {
  static constexpr float kMostAbove = 6;       // of a score above the one that weights are relative to
  static constexpr float kMostScale = 0x1p8F;  // over the power of two
  float base[S::kTiles];                       // exponents of two
  float sum[S::kTiles];                        // the lane's part
  float power[S::kTiles];                      // 0 until a step was seen
  int limit[S::kTiles];                        // the last place of the list that the row sees
  float unit[S::kTiles];                       // from a score to an exponent of two
  int all_see;                                 // the last place that every row sees

  __device__ void start(const AttentionArgs& args, const Work& work, const char* shared) {
    all_see = INT32_MAX;
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
      const int r = 8 * m + static_cast<int>(threadIdx.x) % 32 / 4;
      base[m] = -INFINITY;
      sum[m] = 0;
      power[m] = 0;
      limit[m] = work.limit(args, r);
      all_see = min(all_see, limit[m]);
      unit[m] = reinterpret_cast<const float*>(shared + S::kUnits)[r] * (args.scale * 1.4426950408889634F);
    }
    all_see = __reduce_min_sync(kAll, all_see);
  }

  // Turns a step's scores into weights. `before` is what earlier weights are to be multiplied by.
  __device__ __forceinline__ void soften(int first, float (&scores)[S::kTiles][kMine], float (&before)[S::kTiles]) {
    const bool masked = first + kStep - 1 > all_see;
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
#pragma unroll
      for (int j = 0; j < kMine; ++j) scores[m][j] *= unit[m];
      if (masked) {
#pragma unroll
        for (int j = 0; j < kMine; ++j) scores[m][j] = sees(m, first, j) ? scores[m][j] : -INFINITY;
      }
      float most = scores[m][0];
#pragma unroll
      for (int j = 1; j < kMine; ++j) most = fmaxf(most, scores[m][j]);
      most = fmaxf(most, __shfl_xor_sync(kAll, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAll, most, 2));
      const float old = base[m];
      if (most > old + kMostAbove) base[m] = most;
      const float here = base[m] == -INFINITY ? 0.0F : base[m];
      float added = 0;
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        scores[m][j] = power_of_two(scores[m][j] - here);
        added += scores[m][j];
      }
      before[m] = base[m] == old ? 1.0F : power_of_two(old - here);
      sum[m] = fmaf(sum[m], before[m], added);
    }
  }
  __device__ __forceinline__ float inverse_power(int m) const {
    return __uint_as_float(0x7F000000u - __float_as_uint(power[m]));
  }
  __device__ __forceinline__ bool sees(int m, int first, int j) const {
    return first + 8 * (j / 2) + 2 * (static_cast<int>(threadIdx.x) % 4) + j % 2 <= limit[m];
  }

  // Takes a step's scales of values in; `before` becomes what earlier sums of values are to be multiplied by, and the
  // weights what stands beside them. Returns whether any `before` is not 1.
  __device__ __forceinline__ bool scale_weights(int first, const char* slot, float (&weights)[S::kTiles][kMine],
                                                float (&before)[S::kTiles]) {
    const bool masked = first + kStep - 1 > all_see;
    bool changed = false;
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
      float most = 0x1p-24F;
#pragma unroll
      for (int g = 0; g < S::kGroups; g += Scales<S>::kGroupsAtOnce) {
        Scales<S> scales;
        scales.load(slot, g);
        most = fmaxf(most, masked ? scales.largest([&](int j) { return sees(m, first, j); })
                                  : scales.largest([](int) { return true; }));
      }
      most = fmaxf(most, __shfl_xor_sync(kAll, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAll, most, 2));
      if (most >= power[m] * kMostScale) {
        const float old = power[m];
        power[m] = __uint_as_float(__float_as_uint(most) & 0x7F800000u);
        before[m] *= old * inverse_power(m);
      }
      changed = changed || before[m] != 1.0F;
      const float inverse = inverse_power(m);
#pragma unroll
      for (int j = 0; j < kMine; ++j) weights[m][j] *= inverse;
    }
    return __any_sync(kAll, changed);
  }
};

// Multiplies what was summed before. A lane has rows 8 m + 2 (lane % 4) + {0, 1} of sums, and 8 m + lane / 4 of
// factors.
template <typename S>
__device__ __forceinline__ void rescale(const float (&before)[S::kTiles], float (&sums)[S::kTiles][S::kChunks][4]) {
  const int from = threadIdx.x % 4 * 8;
#pragma unroll
  for (int m = 0; m < S::kTiles; ++m) {
    const float factors[2] = {__shfl_sync(kAll, before[m], from), __shfl_sync(kAll, before[m], from + 4)};
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][c][i] *= factors[i % 2];
    }
  }
}

// sums += a step's values times weights and scales. The products' rows are the even and the odd ones of 16 dimensions:
// a lane has dimensions 2 (lane / 4) + {0, 1} of each, for rows 2 (lane % 4) + {0, 1}.
template <typename S>
__device__ __forceinline__ void add_values(const char* slot, const float (&weights)[S::kTiles][kMine],
                                           float (&sums)[S::kTiles][S::kChunks][4]) {
  const int lane = threadIdx.x % 32;
  const uint32_t first = each_round(shared_address(slot) + swizzled<S::kChunks>(lane, 0) * 16);
  Scales<S> scales;
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g) {
    if (g % Scales<S>::kGroupsAtOnce == 0) scales.load(slot, g);
    uint32_t right[S::kTiles][kMine / 2];
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kMine / 2; ++n) {
        right[m][n] =
            pack_halves(weights[m][2 * n] * scales.of(2 * n, g), weights[m][2 * n + 1] * scales.of(2 * n + 1, g));
      }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      uint32_t words[4];  // of eight tokens each: two tokens of two dimensions
      load_transposed(words, chunk_of(first, g, c));
#pragma unroll
      for (int s = 0; s < kStep / 16; ++s) {
        const CodeHalves first = codes_to_halves(words[2 * s]);
        const CodeHalves second = codes_to_halves(words[2 * s + 1]);
        const uint32_t left[4] = {first.even, first.odd, second.even, second.odd};
#pragma unroll
        for (int m = 0; m < S::kTiles; ++m) {
          multiply_halves(sums[m][4 * g + c], left, right[m][2 * s], right[m][2 * s + 1]);
        }
      }
    }
  }
}

// Adds the streams up and writes the answers, or the piece's part of them.
template <typename S>
__device__ __forceinline__ void finish(const AttentionArgs& args, const Work& work, const int (&places)[S::kRows],
                                       char* shared, const States<S>& states,
                                       const float (&sums)[S::kTiles][S::kChunks][4]) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  auto* stream_sums = reinterpret_cast<float*>(shared);
  auto* stream_states = reinterpret_cast<float4*>(shared + S::kStates);
  await_copies<0>();
  __syncthreads();  // nobody reads keys, values or queries any more
#pragma unroll
  for (int m = 0; m < S::kTiles; ++m) {
    float sum = states.sum[m];
    sum += __shfl_xor_sync(kAll, sum, 1);
    sum += __shfl_xor_sync(kAll, sum, 2);
    const int rows = warp * S::kRows + 8 * m;
    if (lane % 4 == 0) stream_states[rows + lane / 4] = make_float4(states.base[m], sum, states.power[m], 0);
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      float* to = stream_sums + (rows + 2 * (lane % 4)) * S::kSumStride + 16 * c + 2 * (lane / 4);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<float2*>(to + i * S::kSumStride) = make_float2(sums[m][c][i], sums[m][c][2 + i]);
      }
    }
  }
  __syncthreads();
  constexpr int quads = S::kDims / 4;
  const int d = static_cast<int>(threadIdx.x) % quads * 4;
  if (d >= args.kv.head_dim) return;
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x) / quads; r < S::kRows; r += kStreamThreads / quads) {
    if (places[r] < 0) continue;
    float most = -INFINITY;
#pragma unroll
    for (int s = 0; s < kStreams; ++s) most = fmaxf(most, stream_states[s * S::kRows + r].x);
    const float top = most == -INFINITY ? 0.0F : most;
    float4 total{};
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      const float4 state = stream_states[s * S::kRows + r];
      float weight = power_of_two(state.x - top);
      const auto part = *reinterpret_cast<const float4*>(stream_sums + (s * S::kRows + r) * S::kSumStride + d);
      sum = fmaf(state.y, weight, sum);
      weight *= state.z;
      total = {fmaf(part.x, weight, total.x), fmaf(part.y, weight, total.y), fmaf(part.z, weight, total.z),
               fmaf(part.w, weight, total.w)};
    }
    const int64_t row = places[r];
    if (args.partial == nullptr) {
      write_answer(args, row, d, make_float4(total.x / sum, total.y / sum, total.z / sum, total.w / sum));
      continue;
    }
    const int64_t at = row * args.pieces + work.piece;
    *reinterpret_cast<float4*>(args.partial + at * args.kv.head_dim + d) = total;
    if (d == 0) args.states[at] = make_float2(most, sum);
  }
}

// Works through a piece or list. `asked`: the first tiles are on their way.
template <typename S, bool kChosen>
__device__ __forceinline__ void attend(const AttentionArgs& args, const Work& work, Reader<S, kChosen>& reader,
                                       int (&places)[S::kRows], char* shared, bool asked) {
  const int warp = threadIdx.x / 32;
  float sums[S::kTiles][S::kChunks][4] = {};
  States<S> states;
  float weights[S::kTiles][kMine];
  float before[S::kTiles];
  bool late = false;
  if (asked) late = reader.ask_late();
#pragma unroll 1
  for (int tile = asked ? 2 : 0; tile < 2; ++tile) reader.ask(tile != 0);
  __syncthreads();  // places are found
  load_queries<S>(args, places, shared);
  if (late) await_copies<0>();
  __syncthreads();
  states.start(args, work, shared);
#pragma unroll 1
  for (int tile = 0; tile < 2 * ((reader.steps() - warp + kStreams - 1) / kStreams); ++tile) {
    const bool values = tile % 2 != 0;
    const int first = static_cast<int>(work.begin) + (warp + tile / 2 * kStreams) * kStep;
    await_copies<1>();
    __syncwarp();
    const char* slot = reader.slot(values);
    if (values) {
      if (states.scale_weights(first, slot, weights, before)) rescale<S>(before, sums);
      add_values<S>(slot, weights, sums);
    } else {
      score<S>(slot, shared + S::kQueries, weights);
      states.soften(first, weights, before);
    }
    __syncwarp();
    reader.ask(values);
  }
  finish<S>(args, work, places, shared, states, sums);
}

template <int kDim, int kRowTiles, bool kChosen>
__global__ void __launch_bounds__(kStreamThreads, 2)
    attend_codes_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ AttentionGrid grid) {
  let_next_start();
  using S = CodesShape<kDim, kRowTiles>;
  extern __shared__ __align__(128) char shared[];
  __shared__ Work work;             // in registers it would take the place of sums
  __shared__ int places[S::kRows];  // of the rows in queries and answers
  if (threadIdx.x == 0) work = Work(args, grid, S::kRows);
  __syncthreads();
  Reader<S, kChosen> reader(args, work, shared + threadIdx.x / 32 * 2 * S::kSlotBytes);
  bool asked = work.known && work.begin < work.end;
  if (asked) {
    reader.start();
    reader.ask_early();
    find_places(args, work, places);
  }
  await_previous();
  if (kChosen && !work.known) {
    __syncthreads();  // all have read what is known
    if (threadIdx.x == 0) work.find_piece(args);
    __syncthreads();
  }
  work.zero_padding(args);
#pragma unroll 1
  while (true) {
    if (work.begin < work.end) {
      if (!asked) {
        reader.start();
        find_places(args, work, places);
      }
      attend<S, kChosen>(args, work, reader, places, shared, asked);
    }
    if (!work.has_more_columns()) return;
    __syncthreads();  // nobody reads anything of the piece before
    if (threadIdx.x == 0) work.find_piece(args);
    __syncthreads();
    asked = false;
  }
}

template <int kDim, int kRowTiles, bool kChosen>
void launch(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  using S = CodesShape<kDim, kRowTiles>;
  static_assert(S::kBytes <= 96 * 1024);
  const auto kernel = attend_codes_kernel<kDim, kRowTiles, kChosen>;
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  launch_following(context, kernel, work_blocks(args, grid, S::kRows), kStreamThreads, S::kBytes, args, grid);
  TANDEM_CUDA_LAUNCHED("attend_codes");
}

template <int kDim, bool kChosen>
void launch_rows(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (grid.rows <= 8) {
    launch<kDim, 1, kChosen>(context, grid, args);
  } else {
    launch<kDim, 2, kChosen>(context, grid, args);
  }
}

template <int kDim>
void launch_lists(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (args.selection.counts != nullptr) {
    launch_rows<kDim, true>(context, grid, args);
  } else {
    launch_rows<kDim, false>(context, grid, args);
  }
}

}  // namespace

void attend_codes(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (args.kv.head_dim <= 64) {
    launch_lists<64>(context, grid, args);
  } else {
    launch_lists<256>(context, grid, args);
  }
}

}  // namespace tandem::ops::cuda
