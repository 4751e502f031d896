// The recurrence of gated DeltaNet of few columns (delta_few.cu). Half a warp has kRows rows of the block's part of M,
// a lane four columns of them.
#pragma once

#include "ops/cuda/delta_few.cuh"
#include "ops/cuda/mailbox.cuh"

namespace tandem::ops::cuda::delta {

// What a step does with M: M = decay M + k columns^T.
struct Change {
  const float* key;  // all of it, at key_place()s
  float decay;
  float4 columns;  // the lane's

  __device__ float4 row(float4 m, float k) const {
    return {fmaf(columns.x, k, m.x * decay), fmaf(columns.y, k, m.y * decay), fmaf(columns.z, k, m.z * decay),
            fmaf(columns.w, k, m.w * decay)};
  }
};

// One pass over the lane's part of M: moves it on by the change of the column before where there is one, and adds up M
// k and M q over the rows. `rows` are the lane's columns of its first row, `place` is where its rows' keys lie.
template <bool kMove>
__device__ inline void pass(float* rows, int place, const Change& change, const Column& column, float4& keys,
                            float4& queries) {
  keys = queries = {0, 0, 0, 0};
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    float moving[4], k[4], q[4];
    float4 m[4];
    if constexpr (kMove) *reinterpret_cast<float4*>(moving) = load4(change.key + place + r);
    *reinterpret_cast<float4*>(k) = load4(column.key + place + r);
    *reinterpret_cast<float4*>(q) = load4(column.query + place + r);
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = load4(rows + (r + i) * kHalf);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kMove) {
        m[i] = change.row(m[i], moving[i]);
        store4(rows + (r + i) * kHalf, m[i]);
      }
      keys = {fmaf(m[i].x, k[i], keys.x), fmaf(m[i].y, k[i], keys.y), fmaf(m[i].z, k[i], keys.z),
              fmaf(m[i].w, k[i], keys.w)};
      queries = {fmaf(m[i].x, q[i], queries.x), fmaf(m[i].y, q[i], queries.y), fmaf(m[i].z, q[i], queries.z),
                 fmaf(m[i].w, q[i], queries.w)};
    }
  }
}

// M, moved on, to the slot's `matrix`: by as many of the last warps as `warps` says, half a warp four rows at a time.
__device__ inline void store_state(const Place& at, int warps, const Change& change, const Block& block,
                                   float* matrix) {
  const int own = at.lane % 16 * 4;
#pragma unroll 1
  for (int row = 8 * (at.warp - kWarps + warps) + at.lane / 16 * 4; row < kDim; row += 8 * warps) {
    if (row < 0) break;
    float k[4];
    float4 m[4];
    *reinterpret_cast<float4*>(k) = load4(change.key + key_place(row));
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = load4(block.rows[row + i] + own);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      m[i] = change.row(m[i], k[i]);
      store4(matrix + (row + i) * kDim + own, m[i]);
    }
  }
}

// Leaves the warp's sums: its first half those of the keys, the other one those of the queries.
__device__ inline void leave_sums(const Place& at, float4 keys, float4 queries, Sums& sums) {
  const bool of_queries = at.lane >= 16;
  const auto meet = [&](float k, float q) {
    return (of_queries ? q : k) + __shfl_xor_sync(kWholeWarp, of_queries ? k : q, 16);
  };
  const float4 own = {meet(keys.x, queries.x), meet(keys.y, queries.y), meet(keys.z, queries.z),
                      meet(keys.w, queries.w)};
  store4((of_queries ? sums.queries : sums.keys) + at.lane % 16 * 4, own);
}

__device__ inline float4 plus(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
// All warps' sums of the lane's columns; `own` points at the first warp's.
__device__ inline float4 add_warps(const float* own) {
  constexpr int kStride = sizeof(Sums) / sizeof(float);
  return plus(plus(load4(own), load4(own + kStride)), plus(load4(own + 2 * kStride), load4(own + 3 * kStride)));
}

// The output before its norm, and its squares, which go to both halves of the head.
__device__ inline void leave_answer(const Place& at, float4 delta, const Factors& factors, const Sums& sums,
                                    Column& column, Mailbox& mailbox) {
  const int own = at.lane % 16 * 4;
  const float4 asked = add_warps(sums.queries + own);
  const float4 answer = {
      fmaf(delta.x, factors.both, asked.x * factors.answer), fmaf(delta.y, factors.both, asked.y * factors.answer),
      fmaf(delta.z, factors.both, asked.z * factors.answer), fmaf(delta.w, factors.both, asked.w * factors.answer)};
  float squares = fmaf(answer.x, answer.x, answer.y * answer.y) + fmaf(answer.z, answer.z, answer.w * answer.w);
  squares += __shfl_xor_sync(kWholeWarp, squares, 1);
  float* place = &column.squares[at.half][at.lane % 16 / 2];
  if (at.lane < 16) {
    store4(column.answer + own, answer);
    if (at.lane % 2 == 0) *place = squares;
  } else if (at.lane % 2 == 0) {
    mailbox.send(place, static_cast<int>(blockIdx.x ^ 1), squares);
  }
}

// The recurrence over `count` columns, whose outputs before their norms it leaves; and M, moved on, in the slot's
// `matrix` where there is one.
__device__ inline void run_steps(const Place& at, int count, float* matrix, Block& block, Column* columns,
                                 Mailbox& mailbox) {
  const int group = at.group() * kRowsStride;
  const int own = at.lane % 16 * 4;
  float* rows = block.rows[at.group() * kRows] + own;
  Change change{};
#pragma unroll 1
  for (int t = 4; t < count; t += 4) leave_factors(at, t, count, work_out_factors(at, t, count, columns), columns);
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    Column& column = columns[t];
    Sums* sums = block.sums[t % 2];
    float4 keys, queries;
    if (t == 0) {
      const Factors factors = work_out_factors(at, 0, count, columns);  // beside the pass
      pass<false>(rows, group, change, column, keys, queries);
      leave_factors(at, 0, count, factors, columns);
    } else {
      pass<true>(rows, group, change, column, keys, queries);
    }
    const float4 value = load4(column.value + own);
    leave_sums(at, keys, queries, sums[at.warp]);
    __syncthreads();
    const Factors factors = column.factors[at.warp];
    const float4 recalled = add_warps(sums[0].keys + own);
    const float4 delta = {factors.beta * (value.x - recalled.x * factors.recalled),
                          factors.beta * (value.y - recalled.y * factors.recalled),
                          factors.beta * (value.z - recalled.z * factors.recalled),
                          factors.beta * (value.w - recalled.w * factors.recalled)};
    if (at.warp == t % kWarps) leave_answer(at, delta, factors, sums[0], column, mailbox);
    change = {column.key,
              factors.decay,
              {delta.x * factors.key, delta.y * factors.key, delta.z * factors.key, delta.w * factors.key}};
  }
  // The warp of a single column's output has its share of the work in that.
  if (matrix != nullptr) store_state(at, count == 1 ? kWarps - 1 : kWarps, change, block, matrix);
}

// `each` columns of the output from `first` on, by a warp each in turn, two of its values a lane.
__device__ inline void write_output(const Few& args, const Place& at, int64_t first, int tokens, const Block& block,
                                    const Column* columns, Mailbox& mailbox) {
  const int own = 2 * at.lane;
#pragma unroll 1
  for (int t = at.warp; t < args.each; t += kWarps) {
    float2 y = {0, 0};
    if (t < tokens) {
      const Column& column = columns[t];
      __syncwarp();
      mailbox.receive();
      float squares = 0;
#pragma unroll
      for (int slice = 0; slice < 2 * kSlices; slice += 4) {
        const float4 four = load4(column.squares[slice / kSlices] + slice % kSlices);
        squares = squares + four.x + four.y + four.z + four.w;
      }
      const float scale = inverse_rms(squares, kDim, args.net.eps);
      y = {column.answer[own] * scale * block.norm[own] * column.gate[own],
           column.answer[own + 1] * scale * block.norm[own + 1] * column.gate[own + 1]};
    }
    const int64_t place = ((first + t) * args.net.net.value_heads + at.head) * kDim + at.half * kHalf + own;
    *reinterpret_cast<float2*>(args.net.net.out + place) = y;
  }
}

}  // namespace tandem::ops::cuda::delta
