// The rows that read a single column first, by the workers of its experts' kernel (experts_alone.cu): each half of them
// has a part of the router's or of the shared expert's rows, and another one while logits are on their way to the other
// blocks. Sums are those of router_few.cu.
#pragma once

#include "ops/cuda/experts_alone.cuh"

namespace tandem::ops::cuda::expert {

inline constexpr int kRowWarps = kRowThreads / 32;
static_assert(kRowThreads * kRowHalves == kWorkThreads);

// Slot `slot` of the block has part number blockIdx.x + slot * gridDim.x, if there is one.
__device__ inline int number_of_rows(int slot) {
  return static_cast<int>(blockIdx.x) + slot * static_cast<int>(gridDim.x);
}
__device__ inline std::byte* rows_of_slot(const AloneArgs& a, std::byte* shared, int slot) {
  return shared + slot * kRowsOfPart * a.rows.inputs * 2;
}

// A slot's weights, which no one writes. By one thread.
__device__ inline void ask_rows(const AloneArgs& a, std::byte* shared, int slot, Arrival& arrival) {
  if (number_of_rows(slot) >= a.row_parts) return;
  const RowsPart part(a.rows, number_of_rows(slot));
  const int each = a.rows.inputs * 2;
  const int together = part.inner ? kRowsOfPart / 2 : kRowsOfPart;  // rows of one matrix
  const int bytes = min(together, part.last_row + 1 - part.first_row) * each;
  std::byte* to = rows_of_slot(a, shared, slot);
  arrival.expect(part.inner ? 2 * bytes : bytes);
  arrival.ask(to, part.row(a.rows, 0), bytes);
  if (part.inner) arrival.ask(to + together * each, part.row(a.rows, together), bytes);
}

// The four inputs of each step that a thread has of the column.
struct RowInputs {
  float4 steps[kMostRowSteps];
};
__device__ inline RowInputs load_row_inputs(const AloneArgs& a) {
  RowInputs x;
#pragma unroll
  for (int step = 0; step < kMostRowSteps; ++step) {
    const auto at = 4 * (static_cast<int>(threadIdx.x) % kRowThreads + step * kRowThreads);
    x.steps[step] = at < a.rows.inputs ? __ldcg(reinterpret_cast<const float4*>(a.rows.x + at)) : float4{0, 0, 0, 0};
  }
  return x;
}
// For gate and up, where it is padded with zeros. By the first half of the workers.
__device__ inline void store_row_inputs(const AloneArgs& a, const RowInputs& x, float* to) {
#pragma unroll
  for (int step = 0; step < kMostRowSteps; ++step) {
    const int at = static_cast<int>(threadIdx.x) + step * kRowThreads;
    if (at < a.pairs * 64) store4(to + at / 4 * kBlockFloats + at % 4 * 4, x.steps[step]);
  }
}

// Tells all blocks what part `number` gives, whose sums lanes 0 to 3 have.
__device__ inline void give_rows(const AloneArgs& a, const AloneShared& block, int number, float sum) {
  const RowsPart part(a.rows, number);
  const float up = __shfl_down_sync(kWholeWarp, sum, kRowsOfPart / 2);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = part.first_row + lane;
  if (number >= a.row_parts || lane >= (part.inner ? kRowsOfPart / 2 : kRowsOfPart) || row > part.last_row) return;
  if (part.inner) {
    const float inner = silu(sum) * up;
    give_float(block.handed + a.handed.inner, row, inner);
    a.rows.inner_out[row] = inner;
  } else if (part.gates) {
    give_float(block.handed + a.handed.gate, 0, sum);
    a.rows.gates[0] = sum;
  } else {
    give_float(block.handed, row, sum);
  }
}

// Part `number` by half of the workers, or, for nothing, by a single warp: a rehearsal. `sums` are free again when all
// of them have come to another barrier behind this.
__noinline__ __device__ void multiply_rows(const AloneArgs& a, const AloneShared& block, const std::byte* rows,
                                           float4 x0, float4 x1, float4 x2, float4 x3, int number,
                                           float (*sums)[kRowsOfPart], bool rehearsal) {
  const float4 x[kMostRowSteps] = {x0, x1, x2, x3};
  const RowsPart part(a.rows, number);
  const int place = static_cast<int>(threadIdx.x) % kRowThreads;
  const int warp = rehearsal ? 0 : place / 32;
  const int lane = place % 32;
  const int steps = a.rows.inputs <= 3 * 4 * kRowThreads ? 3 : kMostRowSteps;
  float own[kRowsOfPart] = {};
#pragma unroll
  for (int step = 0; step < kMostRowSteps; ++step) {
    if (step >= steps) break;
    const int at = 4 * (place + step * kRowThreads);
    const float4 inputs = part.inner && a.rows.round ? rounded_to_bf16(x[step]) : x[step];
#pragma unroll
    for (int r = 0; r < kRowsOfPart; ++r) {
      const auto* from = reinterpret_cast<const uint2*>(rows + (r * a.rows.inputs + at) * 2);
      own[r] = dot_bf16(at < a.rows.inputs ? *from : uint2{0, 0}, inputs, own[r]);
    }
  }
  const float of_warp = sum_of_warp(own);
  constexpr int kLanes = 32 / kRowsOfPart;
  if (lane % kLanes == 0) sums[warp][lane / kLanes] = of_warp;
  if (!rehearsal) meet_half();
  if (warp > 0) return;
  float sum = sums[0][lane % kRowsOfPart];
#pragma unroll
  for (int other = 1; other < kRowWarps; ++other) sum += sums[other][lane % kRowsOfPart];
  give_rows(a, block, rehearsal ? a.row_parts : number, sum);
}

// The parts of a half of the workers.
__device__ inline void multiply_slots(const AloneArgs& a, AloneShared& block, std::byte* shared, const RowInputs& x,
                                      int half) {
#pragma unroll 1
  for (int slot = half; slot < kRowSlots; slot += kRowHalves) {
    const int number = number_of_rows(slot);
    const bool any = number < a.row_parts;
    if (!any && slot != half) break;  // the first one brings the barrier
    if (any) block.rows[slot].await();
    multiply_rows(a, block, rows_of_slot(a, shared, slot), x.steps[0], x.steps[1], x.steps[2], x.steps[3],
                  any ? number : a.row_parts, block.row_sums[slot], false);
  }
}

}  // namespace tandem::ops::cuda::expert
