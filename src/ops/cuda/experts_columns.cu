// The columns that products take: quantised, rounded or as they are.

#include "ops/cuda/experts_quantise.cuh"

namespace tandem::ops::cuda::expert {

namespace {

constexpr int kThreads = 256;

// What the inputs of a column are: x, or SwiGLU of the products of gate and up.
struct Source {
  const float* x = nullptr;  // [tokens, inputs]
  const float* gate = nullptr;
  const float* up = nullptr;  // [slots, inputs]
  const int32_t* ids = nullptr;
  const float* scalars = nullptr;
  int64_t scalars_each = 0;
  int which = 0;
  int64_t top_k = 0;
  int32_t* faults = nullptr;
  int32_t fault = 0;
  bool round = false;
};

__device__ float input_at(const Source& from, int64_t row, int64_t i) {
  if (from.x != nullptr) return from.x[row + i];
  return swiglu(from.gate[row + i], from.up[row + i]);
}
__device__ float4 inputs_at(const Source& from, int64_t row, int64_t i) {
  const auto load = [&](const float* values) { return *reinterpret_cast<const float4*>(values + row + i); };
  if (from.x != nullptr) return load(from.x);
  const float4 gate = load(from.gate);
  const float4 up = load(from.up);
  return {swiglu(gate.x, up.x), swiglu(gate.y, up.y), swiglu(gate.z, up.z), swiglu(gate.w, up.w)};
}

// Eight lanes have a block of 32 inputs, four inputs each, of which this lane's begin with i.
__device__ bool store_int8(float4 x, InputOrder order, int64_t i, int64_t inputs, std::byte* column) {
  const uint32_t largest = lanes_max<8>(largest_bits(x));
  const Int8Step step = int8_step(largest);
  const int q[4] = {int8_value(x.x, step), int8_value(x.y, step), int8_value(x.z, step), int8_value(x.w, step)};
  auto* block = reinterpret_cast<int8_t*>(column) + i / 32 * 32;
  const auto first = static_cast<int>(i % 32);
  if (order == InputOrder::kNatural) {
    *reinterpret_cast<uint32_t*>(block + first) = as_bytes(q[0], q[1], q[2], q[3]);
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) block[place_in_order(order, first + k)] = static_cast<int8_t>(q[k]);
  }
  if (first == 0) reinterpret_cast<float*>(column + inputs)[i / 32] = step.step;
  return largest < kInfinityBits;
}

__device__ float input_scale_of(const Source& from, const Columns& to, int64_t row, int64_t pair, int64_t column) {
  if (!to.dynamic) return from.scalars[from.ids[pair] * from.scalars_each + 3 + from.which];
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < to.inputs; i += kThreads) {
    largest = max(largest, magnitude_bits(input_at(from, row, i)));
  }
  __shared__ uint32_t shared[kThreads / 32];
  largest = lanes_max<32>(largest);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = largest;
  __syncthreads();
  for (const uint32_t other : shared) largest = max(largest, other);
  const float scale = dynamic_input_scale(largest);
  if (threadIdx.x == 0 && blockIdx.y == 0) to.scales[column] = scale;
  return scale;
}

// A column a block, or the blocks of a column share it.
__global__ void __launch_bounds__(kThreads) make_columns(Source from, Grouping grouping, Columns to) {
  follow();
  const int64_t column = blockIdx.x;
  const int64_t pair = to.by_token ? column * from.top_k : grouping.order[column];
  if (pair < 0) return;
  const int64_t token = pair / from.top_k;
  const int64_t row = (from.x != nullptr ? token : column) * to.inputs;
  std::byte* out = to.data + column * to.stride;
  float scale = 1.0F;
  if (to.kind == ColumnKind::kNvfp4) {
    scale = input_scale_of(from, to, row, pair, column);
    if (!to.dynamic && threadIdx.x == 0 && blockIdx.y == 0) to.scales[column] = scale;
  }
  bool finite = true;
  if (to.kind == ColumnKind::kFloats) {
    for (int64_t i = blockIdx.y * kThreads + threadIdx.x; i < to.inputs; i += gridDim.y * kThreads) {
      const float value = input_at(from, row, i);
      reinterpret_cast<float*>(out)[i] = from.round ? rounded_to_bf16(value) : value;
    }
    return;
  }
  // Four inputs a lane; lanes behind the end repeat the last blocks.
  const int lanes = to.kind == ColumnKind::kNvfp4 ? 4 : 8;
  const int64_t blocks = to.inputs / (4 * lanes);
  for (int64_t first = blockIdx.y * kThreads; first < to.inputs / 4; first += gridDim.y * kThreads) {
    const int64_t block = min((first + threadIdx.x) / lanes, blocks - 1);
    const int part = static_cast<int>(threadIdx.x) % lanes;
    const int64_t i = (block * lanes + part) * 4;
    const float4 x = inputs_at(from, row, i);
    if (to.kind == ColumnKind::kInt8) {
      finite = store_int8(x, to.order, i, to.inputs, out) && finite;
    } else if (to.wide) {
      uint32_t bytes;
      int32_t t;
      finite = quantise_quarter(x, scale, bytes, t) && finite;
      *reinterpret_cast<uint32_t*>(out + i) = bytes;
      if (part == 0) reinterpret_cast<int32_t*>(out + to.inputs)[block] = t;
    } else {
      finite = store_quarter(x, scale, part, block, reinterpret_cast<Nvfp4Inputs*>(out)) && finite;
    }
  }
  if (!finite) mark_fault(from.faults, token, from.fault);
}

void launch(const Context& context, const Source& from, const Grouping& grouping, int64_t columns, const Columns& to) {
  // Few columns are spread over the card.
  const int64_t parts = columns > kMostFewPairs ? 1 : base::ceil_div(to.inputs, 4 * kThreads);
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(parts));
  launch_following(context, make_columns, grid, kThreads, 0, from, grouping, to);
}

Source source_of(const Context& context, const Ops::Experts& args, int which) {
  return {.ids = args.ids,
          .scalars = args.table.scalars,
          .scalars_each = args.table.scalars_each,
          .which = which,
          .top_k = args.top_k,
          .faults = args.faults,
          .fault = args.fault,
          .round = context.round_inputs};
}

// The sums of the experts of a token, four channels a thread.
__global__ void __launch_bounds__(kThreads)
    sum_terms(Ops::Experts args, const int32_t* slot_of, const float* y, int64_t hidden, int channels) {
  follow();
  const int64_t row = (blockIdx.x * kThreads + threadIdx.x) * static_cast<int64_t>(channels);
  const int64_t token = blockIdx.y;
  if (row >= hidden) return;
  int64_t sums[2][4] = {};
  bool usable = true;
  for (int64_t pair = token * args.top_k; pair < (token + 1) * args.top_k; ++pair) {
    const int32_t slot = slot_of[pair];
    const bool odd = (args.ids[pair] & 1) != 0;
    const float weight = args.weights[pair];
    float values[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
    if (slot >= 0) {
      const float* from = y + slot * hidden + row;
      if (channels == 4) {
        *reinterpret_cast<float4*>(values) = *reinterpret_cast<const float4*>(from);
      } else {
        values[0] = *from;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= channels) break;
      const float term = slot < 0 ? INFINITY : weight * values[i];
      const bool fits = fabsf(term) < numeric::kLargestExpertTerm;
      const int64_t fixed = fits ? __float2ll_rn(term * 0x1p32F) : 0;
      usable = usable && fits;
      sums[0][i] += odd ? 0 : fixed;
      sums[1][i] += odd ? fixed : 0;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= channels) break;
    args.lower[token * hidden + row + i] = __ll2float_rn(sums[0][i]) * 0x1p-32F;
    args.upper[token * hidden + row + i] = __ll2float_rn(sums[1][i]) * 0x1p-32F;
  }
  if (!usable) mark_fault(args.faults, token, args.fault);
}

}  // namespace

void make_input_columns(const Context& context, const Ops::Experts& args, const Grouping& grouping, int which,
                        const Columns& to) {
  Source from = source_of(context, args, which);
  from.x = args.x;
  launch(context, from, grouping, args.tokens * (to.by_token ? 1 : args.top_k), to);
}

void make_down_columns(const Context& context, const Ops::Experts& args, const Grouping& grouping, const float* gate,
                       const float* up, const Columns& to) {
  Source from = source_of(context, args, 2);
  from.gate = gate;
  from.up = up;
  launch(context, from, grouping, args.tokens * args.top_k, to);
}

void sum_experts(const Context& context, const Ops::Experts& args, const Grouping& grouping, const float* y) {
  const int64_t hidden = args.table.hidden;
  const int channels = hidden % 4 == 0 && args.tokens > kMostFewColumns ? 4 : 1;
  const dim3 grid(static_cast<unsigned>(base::ceil_div(hidden, kThreads * channels)),
                  static_cast<unsigned>(args.tokens));
  launch_following(context, sum_terms, grid, kThreads, 0, args, grouping.slot_of, y, hidden, channels);
}

}  // namespace tandem::ops::cuda::expert
