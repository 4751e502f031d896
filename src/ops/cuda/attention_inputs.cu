// What attention reads, in a launch of its own: queries and keys after norm and rotation, keys and values in the pages,
// and what the choice of blocks begins with. A warp makes one row of one column.
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_index.cuh"
#include "ops/cuda/attention_rows.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

struct InputArgs {
  KvView kv{KvLayer{}};
  const Run* runs;
  int each;
  int heads;
  unsigned items;   // warps that work: columns * (heads + 2 * kv_heads)
  unsigned blocks;  // of the grid, for these; those behind are the index's
  bool round;
  float eps;
  const float* q_gate;
  const float* k;
  const float* v;
  const float* q_norm;
  const float* k_norm;
  float* q;
};

template <bool kFew>
__device__ void make_input(const InputArgs& args, const RotaryTable& rotary, RowMemory& memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned item = blockIdx.x * kRowWarps + warp;
  if (item >= args.items) return;  // others of the block wait for the kernel before
  const unsigned each_column = args.heads + 2 * args.kv.kv_heads;
  const unsigned place = item / each_column;
  const auto part = static_cast<int>(item - place * each_column);  // query heads, keys, values
  const bool query = part < args.heads;
  const bool value = part >= args.heads + args.kv.kv_heads;
  const int head = query ? part : (part - args.heads) % args.kv.kv_heads;
  const unsigned r = place / static_cast<unsigned>(args.each);
  const auto offset = static_cast<int>(place - r * args.each);
  const int64_t column = place;
  const Run run = args.runs[r];
  const int64_t position = run.position + offset;
  const int dim = args.kv.head_dim;
  const float* norm = query ? args.q_norm : args.k_norm;
  const float* from = query ? args.q_gate + (column * args.heads + head) * 2 * dim
                            : (value ? args.v : args.k) + (column * args.kv.kv_heads + head) * dim;
  Row weight;
  load_row(weight, norm, dim);
  if (!value) make_angles(rotary, position, memory.angles[warp]);
  // Queries of padding are made: nothing depends on them.
  const bool appends = !query && offset < run.tokens;
  const OwnRow to(args.kv, appends ? run.block_table : nullptr, head, position, value);
  __syncwarp();
  rehearse<kFew>([&](bool for_good) {
    Row row;
    load_row(row, for_good ? from : norm, dim);
    if (!value) {
      norm_row(row, dim, weight, args.eps);
      rotate_row(row, rotary.pairs, memory.angles[warp], memory.place[warp]);
    }
    if (!query) {
      to.store(args.kv, row, for_good && appends);
    } else if (for_good) {
      float* q = args.q + (column * args.heads + head) * dim;
#pragma unroll
      for (int i = 0; i < kRowParts; ++i) {
        if (row_place(i) < dim) store4(q + row_place(i), args.round ? rounded_to_bf16(row[i]) : row[i]);
      }
    }
  });
}

template <bool kFew>
__global__ void __launch_bounds__(32 * kRowWarps, kFew ? 4 : 10)
    attention_inputs_kernel(const __grid_constant__ InputArgs args, const __grid_constant__ IndexArgs index,
                            const __grid_constant__ RotaryTable rotary) {
  let_next_start();
  __shared__ RowMemory memory;
  if (blockIdx.x < args.blocks) return make_input<kFew>(args, rotary, memory);
  make_index<kFew>(index, rotary, blockIdx.x - args.blocks, memory);
}

InputArgs input_args(const Context& context, const Columns& columns, const Ops::AttentionInputs& args) {
  if (args.kv.head_dim > kMostDim || args.kv.head_dim % 4 != 0) {
    base::internal_error("cuda", "heads of {} dimensions", args.kv.head_dim);
  }
  const int64_t items = columns.count() * (args.heads + 2 * args.kv.kv_heads);
  return {.kv = KvView(args.kv),
          .runs = columns.table,
          .each = static_cast<int>(columns.each),
          .heads = static_cast<int>(args.heads),
          .items = static_cast<unsigned>(items),
          .blocks = static_cast<unsigned>((items + kRowWarps - 1) / kRowWarps),
          .round = context.round_inputs,
          .eps = args.eps,
          .q_gate = args.q_gate,
          .k = args.k,
          .v = args.v,
          .q_norm = args.q_norm,
          .k_norm = args.k_norm,
          .q = args.q};
}

void launch(const Context& context, const Columns& columns, const InputArgs& inputs, const IndexArgs& index,
            unsigned index_blocks, const Rotary& rotary, const char* name) {
  if (context.plans() || columns.count() == 0) return;
  const bool few = columns.count() <= kMostFewColumns;
  launch_following(context, few ? attention_inputs_kernel<true> : attention_inputs_kernel<false>,
                   inputs.blocks + index_blocks, 32 * kRowWarps, 0, inputs, index, RotaryTable(rotary));
  TANDEM_CUDA_LAUNCHED(name);
}

}  // namespace

void attention_inputs(const Context& context, const Columns& columns, const Ops::AttentionInputs& args) {
  launch(context, columns, input_args(context, columns, args), IndexArgs(), 0, args.rotary, "attention_inputs");
}

void index_inputs(const Context& context, const Columns& columns, const Ops::IndexInputs& args) {
  const IndexArgs index(columns, args, context.round_inputs, nullptr);
  launch(context, columns, InputArgs{}, index, index.blocks(columns), args.rotary, "index_inputs");
}

void attention_and_index_inputs(const Context& context, const Columns& columns, const Ops::AttentionInputs& args,
                                const Ops::IndexInputs& index_args, int32_t* everything) {
  const IndexArgs index(columns, index_args, context.round_inputs, everything);
  launch(context, columns, input_args(context, columns, args), index, index.blocks(columns), args.rotary,
         "attention_and_index_inputs");
}

}  // namespace tandem::ops::cuda
