// Gate and up of NVFP4 experts for few columns, SwiGLU and the inputs of down. An item is a tile of 16 rows of gate and
// of up of one run; a block has consecutive items, and its warps share their parts evenly: sums are exact, so their
// order is free. A tile is also a block of 16 of down's inputs, so that these are quantised at once.
#pragma once

#include "ops/cuda/experts_few.cuh"

namespace tandem::ops::cuda::expert {

__device__ inline bool shares_inputs(const FewArgs& a, const float* scalars) {
  return is_dynamic(a) || __float_as_uint(scalars[3]) == __float_as_uint(scalars[4]);
}

// Where a column of gate (kind 0) or up is, of a run of the pass.
__device__ inline std::byte* gate_column(const Block& block, int run, int kind, int c) {
  return block.columns + ((run * 2 + kind) * block.a.together + c) * block.a.column_stride;
}

// The scales of tokens without calibrated ones, a warp each.
__device__ inline void find_token_scales(const FewArgs& a, const Block& block, float* scales) {
  for (int token = block.warp; token < a.args.tokens; token += block.warps) {
    const float* x = a.args.x + token * a.args.table.hidden;
    uint32_t largest = 0;
#pragma unroll 4
    for (int64_t i = 4 * block.lane; i < a.args.table.hidden; i += 128) {
      largest = max(largest, largest_bits(*reinterpret_cast<const float4*>(x + i)));
    }
    largest = lanes_max<32>(largest);
    if (block.lane == 0) scales[token] = dynamic_input_scale(largest);
  }
  __syncthreads();
}

// store_half() by instructions that stand in one place. Where a block comes to them first after it has asked for
// weights, they queue behind these, for microseconds: so a warp that has nothing to do goes through them before, for
// nothing.
__noinline__ __device__ inline bool quantise_half(float4 low, float4 high, float scale, int half, Nvfp4Inputs* column) {
  return store_half(low, high, scale, half, column);
}
__device__ inline void rehearse(std::byte* columns) {
  const float4 zeros = {0, 0, 0, 0};
  quantise_half(zeros, zeros, 1.0F, static_cast<int>(threadIdx.x) % 32, reinterpret_cast<Nvfp4Inputs*>(columns));
}

// What a warp does of the columns of a pass at once: 256 inputs of a column for gate or for up, eight a lane.
struct ColumnTask {
  float4 low, high;
  int number = -1;  // nothing to do
};
// The runs of a pass, and what is to be done of their columns.
struct Pass {
  int first_run, runs;
  int together;  // the most columns that one of them has
  __device__ Pass(const Runs& all, int first, int last) : first_run(first), runs(min(kRunsOfPass, last - first + 1)) {
    together = max(all.count[first], all.count[first + runs - 1]);
  }
  __device__ int tasks(const FewArgs& a) const { return runs * 2 * together * static_cast<int>(a.chunks.value); }
};
// What a task is of. Found anew when the inputs are there: held in registers until then, it would be spilled, and what
// is loaded with it, which would have to arrive for that.
struct ColumnPlace {
  bool any;
  int run, kind, column, chunk, half, token;
  __device__ ColumnPlace(const Block& block, const Pass& pass, int task) {
    const FewArgs& a = block.a;
    const auto all = static_cast<int>(a.chunks.quotient(task));
    chunk = task - all * static_cast<int>(a.chunks.value);
    kind = all & 1;
    run = all / 2 >= pass.together ? 1 : 0;  // of the pass
    column = all / 2 - run * pass.together;
    any = task < pass.tasks(a) && column < block.runs.count[pass.first_run + run];
    // Lanes behind the end repeat it.
    half = min(chunk * 32 + block.lane, static_cast<int>(a.args.table.hidden / 8) - 2 + block.lane % 2);
    token = any ? static_cast<int>(a.top_k.quotient(block.runs.pair[pass.first_run + run][column])) : 0;
  }
};
__device__ inline ColumnTask load_task(const Block& block, const Pass& pass, int task) {
  const ColumnPlace place(block, pass, task);
  ColumnTask out;
  if (!place.any) return out;
  const auto* from =
      reinterpret_cast<const float4*>(block.a.args.x + place.token * block.a.args.table.hidden + place.half * 8);
  out.low = from[0];
  out.high = from[1];
  out.number = task;
  return out;
}
__device__ inline void store_task(const Block& block, const Pass& pass, const ColumnTask& task) {
  if (task.number < 0) return;
  const FewArgs& a = block.a;
  const ColumnPlace place(block, pass, task.number);
  const float* scalars = scalars_of_run(block.runs, pass.first_run + place.run);
  if (place.kind == 1 && shares_inputs(a, scalars)) return;
  const float scale = is_dynamic(a) ? block.token_scales[place.token] : scalars[3 + place.kind];
  std::byte* to = gate_column(block, place.run, place.kind, place.column);
  if (!quantise_half(task.low, task.high, scale, place.half, reinterpret_cast<Nvfp4Inputs*>(to))) {
    mark_fault(a.args.faults, place.token, a.args.fault);
  }
  // The second unit of the last part, where there is none.
  const int64_t units = a.args.table.hidden / kNvfp4UnitInputs;
  if (units % kPartUnits != 0 && place.chunk == 0 && block.lane < static_cast<int>(sizeof(Nvfp4Inputs)) / 4) {
    reinterpret_cast<uint32_t*>(to + units * sizeof(Nvfp4Inputs))[block.lane] = 0;
  }
}

// `parts` parts of an item from `first` on, into its sums [gate, up][column].
template <int C>
__device__ void sum_item(const Block& block, const std::byte* columns, bool shared, int first, int parts,
                         Stream& stream, const Nvfp4Tables& tables, RowSums* sums) {
  const FewArgs& a = block.a;
  const int lane = block.lane;
  const ColumnPlaces<C> places(lane, [&](int c) { return columns + c * a.column_stride; });
  const int up_columns = shared ? 0 : a.together * a.column_stride;
  TileSums<C> gate;
  TileSums<C> up;
  gate.clear();
  up.clear();
#pragma unroll 1
  for (int at = first * kPartColumnBytes; at < (first + parts) * kPartColumnBytes; at += kPartColumnBytes) {
    PartInputs<C> inputs;
    PartInputs<C> up_inputs;
    inputs.load(places, at, lane);
    up_inputs.load(places, at + up_columns, lane);
    const std::byte* stage = stream.wait();
    gate.add_part(tables, stage, inputs, lane);
    up.add_part(tables, stage + kPartBytes, up_inputs, lane);
    stream.release(a);
  }
  gate.gather(lane, [&](int c, int row, int64_t sum) { add_shared(&sums[c][row], sum); });
  up.gather(lane, [&](int c, int row, int64_t sum) { add_shared(&sums[a.together + c][row], sum); });
}

// The last step of an item, by one warp: SwiGLU of the sums, and down's inputs.
__device__ inline void finish_item(const Block& block, const Piece& item, const RowSums* sums) {
  const FewArgs& a = block.a;
  const int count = block.runs.count[item.run];
  const int row = block.lane % 16;
  const float* scalars = scalars_of_run(block.runs, item.run);
  const int64_t inner = a.args.table.inner;
#pragma unroll 1
  for (int c0 = 0; c0 < count; c0 += 2) {
    const int c = min(c0 + block.lane / 16, count - 1);  // an odd last column is computed twice
    const int pair = block.runs.pair[item.run][c];
    const auto token = static_cast<int64_t>(a.top_k.quotient(pair));
    const float gate_scale = is_dynamic(a) ? block.token_scales[token] : scalars[3];
    const float up_scale = is_dynamic(a) ? block.token_scales[token] : scalars[4];
    const float h = swiglu(nvfp4_scaled(sums[c][row], scalars[0], gate_scale),
                           nvfp4_scaled(sums[a.together + c][row], scalars[1], up_scale));
    if (is_dynamic(a)) {
      a.inner[pair * inner + item.tile * 16 + row] = h;
      continue;
    }
    const uint32_t largest = lanes_max<16>(magnitude_bits(h));
    const Nvfp4Step step = nvfp4_step(largest, scalars[5]);
    Nvfp4Inputs* column = a.down + pair * (few_parts(inner) * kPartUnits);
    nvfp4_byte(column, item.tile, row) = static_cast<int8_t>(nvfp4_value(h, step));
    if (row == 0) nvfp4_scale(column, item.tile) = step.t;
    if (largest >= kInfinityBits) mark_fault(a.args.faults, token, a.args.fault);
  }
}

// The block's items, whose sums are zero before. `tasks`: this warp's first of the columns, loaded before any weights
// are asked for, behind which they would have to queue.
template <int kTogether>
__device__ void multiply_gate_and_up(const Block& block, int items, Stream& stream, const Nvfp4Tables& tables,
                                     ColumnTask (&tasks)[2], RowSums* sums) {
  const FewArgs& a = block.a;
  const int sums_each = 2 * a.together;
#pragma unroll 1
  for (int begin = 0; begin < items;) {
    const int first_run = block.items[begin].run;
    int end = block.items[items - 1].run < first_run + kRunsOfPass ? items : begin;
    while (end < items && block.items[end].run < first_run + kRunsOfPass) ++end;
    const Share share = share_of((end - begin) * a.gate_parts.value, block.warp, a.warps);
    auto item = static_cast<int>(a.gate_parts.quotient(share.at));
    auto part = share.at - item * static_cast<int>(a.gate_parts.value);
    item += begin;
    stream.cursor = {block.items + item, part, share.end - share.at};
    stream.last = end == items;
    stream.ask_all(a);
    const Pass pass(block.runs, first_run, block.items[end - 1].run);
    if (begin > 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) tasks[i] = load_task(block, pass, block.warp + i * block.warps);
    }
    store_task(block, pass, tasks[0]);
    store_task(block, pass, tasks[1]);
#pragma unroll 1
    for (int i = block.warp + 2 * block.warps; i < pass.tasks(a); i += block.warps) {
      store_task(block, pass, load_task(block, pass, i));
    }
    __syncthreads();
#pragma unroll 1
    for (int left = share.end - share.at; left > 0; ++item, part = 0) {
      const int here = min(left, static_cast<int>(a.gate_parts.value) - part);
      const int run = block.items[item].run;
      const int count = block.runs.count[run];
      const std::byte* columns = gate_column(block, run - first_run, 0, 0);
      const bool shared = shares_inputs(a, scalars_of_run(block.runs, run));
      RowSums* to = sums + item * sums_each;
      if (kTogether == 1 || count == 1) {
        sum_item<1>(block, columns, shared, part, here, stream, tables, to);
      } else {
        sum_item<kTogether>(block, columns, shared, part, here, stream, tables, to);
      }
      left -= here;
    }
    __syncthreads();
    begin = end;
  }
  for (int item = block.warp; item < items; item += block.warps) {
    finish_item(block, block.items[item], sums + item * sums_each);
  }
}

}  // namespace tandem::ops::cuda::expert
