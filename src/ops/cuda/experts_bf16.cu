#include "ops/cuda/experts_bf16.h"
#include "ops/cuda/experts_bf16_kernel.cuh"

namespace tandem::ops::cuda::expert {

namespace bf16 {

Order order_of(numeric::ExpertFormat format) {
  if (format == numeric::ExpertFormat::kNvfp4) return Order::kNvfp4;
  switch (input_order(format)) {
    case InputOrder::kNatural:
      return Order::kNatural;
    case InputOrder::kFourApart:
      return Order::kFourApart;
    case InputOrder::kNibbles:
      return Order::kNibbles;
  }
  return Order::kNatural;
}

namespace {

using numeric::ExpertFormat;

constexpr int kColumnWarps = 8;

// Where columns come from and how they are made.
struct Source {
  const float* x = nullptr;  // [tokens or slots, inputs]
  int64_t inputs = 0;
  int64_t columns = 0;
  bool by_token = false;    // columns are tokens, else slots
  bool from_slots = false;  // x has slots
  bool quantise = false;
  bool dynamic = false;
  int which = 0;
  Order order = Order::kNvfp4;
  uint16_t* to[2] = {};           // of gate, and of up where that has other input scales; or of down
  float* input_scales = nullptr;  // dynamic
};

__device__ inline void load_sixteen(const float* from, float (&x)[16]) {
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float4 four = reinterpret_cast<const float4*>(from)[q];
    x[4 * q] = four.x;
    x[4 * q + 1] = four.y;
    x[4 * q + 2] = four.z;
    x[4 * q + 3] = four.w;
  }
}

// A column a warp.
__global__ void __launch_bounds__(32 * kColumnWarps)
    make_bf16_columns(Source from, Ops::Experts args, Grouping grouping) {
  follow();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumnWarps + threadIdx.x / 32;
  if (column >= from.columns) return;
  const int64_t pair = from.by_token ? column * args.top_k : grouping.order[column];
  if (pair < 0) return;
  const int64_t token = pair / args.top_k;
  const float* x = from.x + (from.from_slots ? column : token) * from.inputs;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = static_cast<int>(from.inputs / 16);
  float scales[2] = {1.0F, 1.0F};
  int matrices = 1;
  if (from.quantise && from.dynamic) {
    uint32_t largest = 0;
    for (int block = lane; block < blocks; block += 32) {
      float values[16];
      load_sixteen(x + 16 * block, values);
      largest = max(largest, largest_of_sixteen(values));
    }
    scales[0] = dynamic_input_scale(lanes_max<32>(largest));
    if (lane == 0) from.input_scales[column] = scales[0];
  } else if (from.quantise) {
    const float* scalars = args.table.scalars + args.ids[pair] * args.table.scalars_each + 3 + from.which;
    scales[0] = scalars[0];
    if (from.to[1] != nullptr) {
      scales[1] = scalars[1];
      if (__float_as_uint(scales[0]) != __float_as_uint(scales[1])) matrices = 2;
    }
  }
  bool finite = true;
  for (int m = 0; m < matrices; ++m) {
    const float by_six = reciprocal_of_six(scales[m]);
    uint16_t* to = from.to[m] + column * from.inputs;
    for (int block = lane; block < blocks; block += 32) {
      float values[16];
      load_sixteen(x + 16 * block, values);
      if (from.quantise) {
        const uint32_t largest = largest_of_sixteen(values);
        const BlockScale scale(largest, scales[m], by_six);
#pragma unroll
        for (float& value : values) value = scale.value(value);
        finite = finite && largest < kInfinityBits;
      }
      store_sixteen(from.order, values, block, to);
    }
  }
  if (!finite) mark_fault(args.faults, token, args.fault);
}

void make_columns(const Context& context, const Ops::Experts& args, const Grouping& grouping, const Source& from) {
  const dim3 grid(static_cast<unsigned>(base::ceil_div(from.columns, kColumnWarps)));
  launch_following(context, make_bf16_columns, grid, dim3(32 * kColumnWarps), 0, from, args, grouping);
}

void multiply_gate_up(const Context& context, ExpertFormat format, const Product& product) {
  if (format == ExpertFormat::kNvfp4) return launch<Nvfp4, true>(context, product);
  launch_blocks(context, format, true, product);
}
void multiply_down(const Context& context, ExpertFormat format, const Product& product) {
  if (format == ExpertFormat::kNvfp4) return launch<Nvfp4, false>(context, product);
  launch_blocks(context, format, false, product);
}

// What the stages hand on.
struct Memory {
  Grouping grouping;
  uint16_t* gate = nullptr;  // columns of gate, and of up
  uint16_t* up = nullptr;
  uint16_t* down = nullptr;
  float* inner = nullptr;  // dynamic input scales of down only
  float* input_scales = nullptr;
  float* down_scales = nullptr;
  float* y = nullptr;
};

bool quantises(const Ops::Experts& args, int which) {
  return args.quantise_activations &&
         args.table.record.matrices[static_cast<size_t>(which)].format == ExpertFormat::kNvfp4;
}

Memory take(const Context& context, const Ops::Experts& args, bool by_token, bool dynamic_down) {
  Scratch& scratch = context.scratch;
  const int64_t pairs = args.tokens * args.top_k;
  const int64_t columns = by_token ? args.tokens : pairs;
  Memory memory;
  Grouping& grouping = memory.grouping;
  grouping.bound = static_cast<int>(most_groups(pairs, args.table.experts));
  grouping.groups = scratch.take<Group>(grouping.bound);
  grouping.order = scratch.take<int32_t>(pairs);
  grouping.slot_of = scratch.take<int32_t>(pairs);
  grouping.firsts = scratch.take<int32_t>(args.table.experts + 1);
  memory.input_scales = scratch.take<float>(columns);
  memory.down_scales = scratch.take<float>(pairs);
  memory.down = scratch.take<uint16_t>(pairs * args.table.inner);
  // The products of down take the place of what is needed before them.
  {
    const Scratch::Scope later(scratch);
    memory.y = scratch.take<float>(pairs * args.table.hidden);
  }
  memory.gate = scratch.take<uint16_t>(columns * args.table.hidden);
  if (!by_token) memory.up = scratch.take<uint16_t>(columns * args.table.hidden);
  if (dynamic_down) memory.inner = scratch.take<float>(pairs * args.table.inner);
  return memory;
}

Product product_of(const Ops::Experts& args, const Grouping& grouping, int which) {
  const auto& matrices = args.table.record.matrices;
  const auto first = static_cast<size_t>(which);
  Product product;
  product.records = args.table.records;
  product.record_bytes = args.table.record.bytes;
  product.offsets[0] = matrices[first].offset;
  product.scales_offsets[0] = matrices[first].scales_offset;
  if (which == 0) {
    product.offsets[1] = matrices[1].offset;
    product.scales_offsets[1] = matrices[1].scales_offset;
  }
  product.rows = which == 0 ? args.table.inner : args.table.hidden;
  product.inputs = which == 0 ? args.table.hidden : args.table.inner;
  product.scalars = args.table.scalars;
  product.scalars_each = args.table.scalars_each;
  product.which = which;
  product.quantised = quantises(args, which);
  product.grouping = grouping;
  product.top_k = args.top_k;
  product.faults = args.faults;
  product.fault = args.fault;
  return product;
}

}  // namespace
}  // namespace bf16

bool takes_bf16(const Context& context, const Ops::Experts& args) {
  const auto& matrices = args.table.record.matrices;
  const auto serves = [](const auto& matrix) {
    return matrix.format == numeric::ExpertFormat::kNvfp4 || is_block_format(matrix.format);
  };
  return context.bf16_experts && context.tensor_cores && (args.quantise_activations || context.round_inputs) &&
         args.tokens > kMostFewColumns && args.tokens * args.top_k > kMostFewPairs &&
         matrices[0].format == matrices[1].format && std::all_of(matrices.begin(), matrices.end(), serves) &&
         args.table.hidden % bf16::kStep == 0 && args.table.inner % bf16::kStep == 0;
}

void run_bf16(const Context& context, const Ops::Experts& args) {
  const Scratch::Scope scope(context.scratch);
  const auto& matrices = args.table.record.matrices;
  const bool dynamic = args.table.scalars_each == 3;
  const bool by_token = !bf16::quantises(args, 0) || dynamic;
  const bool dynamic_down = bf16::quantises(args, 2) && dynamic;
  const bf16::Memory memory = bf16::take(context, args, by_token, dynamic_down);
  if (context.plans()) return;

  const int64_t pairs = args.tokens * args.top_k;
  group_pairs(context, args.ids, pairs, args.table.experts, memory.grouping);
  bf16::Source inputs{.x = args.x,
                      .inputs = args.table.hidden,
                      .columns = by_token ? args.tokens : pairs,
                      .by_token = by_token,
                      .quantise = bf16::quantises(args, 0),
                      .dynamic = dynamic,
                      .which = 0,
                      .order = bf16::order_of(matrices[0].format),
                      .to = {memory.gate, memory.up},
                      .input_scales = memory.input_scales};
  bf16::make_columns(context, args, memory.grouping, inputs);

  bf16::Product first = bf16::product_of(args, memory.grouping, 0);
  first.columns[0] = memory.gate;
  first.columns[1] = memory.up;
  first.by_token = by_token;
  first.input_scales = inputs.quantise && dynamic ? memory.input_scales : nullptr;
  first.inner = !bf16::quantises(args, 2) ? bf16::Inner::kRounded
                : dynamic                 ? bf16::Inner::kFloats
                                          : bf16::Inner::kNvfp4;
  first.inner_order = bf16::order_of(matrices[2].format);
  first.inner_columns = memory.down;
  first.inner_floats = memory.inner;
  bf16::multiply_gate_up(context, matrices[0].format, first);
  if (dynamic_down) {
    bf16::make_columns(context, args, memory.grouping,
                       {.x = memory.inner,
                        .inputs = args.table.inner,
                        .columns = pairs,
                        .from_slots = true,
                        .quantise = true,
                        .dynamic = true,
                        .which = 2,
                        .order = first.inner_order,
                        .to = {memory.down, nullptr},
                        .input_scales = memory.down_scales});
  }
  bf16::Product second = bf16::product_of(args, memory.grouping, 2);
  second.columns[0] = memory.down;
  second.input_scales = dynamic_down ? memory.down_scales : nullptr;
  second.passes = 2;
  second.out = memory.y;
  bf16::multiply_down(context, matrices[2].format, second);
  sum_experts(context, args, memory.grouping, memory.y);
}

}  // namespace tandem::ops::cuda::expert
