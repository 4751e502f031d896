#include <algorithm>

#include "numeric/expert_limits.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/experts_bf16.h"
#include "ops/cuda/experts_parts.cuh"

namespace tandem::ops::cuda {

namespace {

using expert::ColumnKind;
using expert::Columns;
using expert::Grouping;
using expert::Product;
using numeric::ExpertFormat;

enum Projection : uint8_t { kGate, kUp, kDown };
// Tokens that are computed together: an expert of Flash-Next has 40 of their columns then, and reading it is hidden.
constexpr int64_t kMostTokens = 2048;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Whether there are columns enough for tensor cores.
bool are_many(const Context& context, const Ops::Experts& args) {
  return context.tensor_cores && args.quantise_activations && args.tokens > kMostFewColumns &&
         args.tokens * args.top_k > expert::kMostFewPairs;
}

Columns columns_of(const Ops::Experts& args, Projection which, bool many) {
  Columns columns;
  const ExpertFormat format = args.table.record.matrices[which].format;
  columns.inputs = which == kDown ? args.table.inner : args.table.hidden;
  columns.stride = round_up(columns.inputs * 4, 16);
  if (args.quantise_activations && format == ExpertFormat::kNvfp4) {
    columns.kind = ColumnKind::kNvfp4;
    columns.wide = many;
    columns.stride =
        many ? columns.inputs / 4 * 5 : columns.inputs / 64 * static_cast<int64_t>(sizeof(expert::Nvfp4Inputs));
    columns.dynamic = args.table.scalars_each == 3;
  } else if (args.quantise_activations && takes_int8_activations(format)) {
    columns.kind = ColumnKind::kInt8;
    columns.order = expert::input_order(format);
    columns.stride = round_up(columns.inputs + columns.inputs / 32 * 4, 16);
  }
  columns.by_token = which != kDown && (columns.kind != ColumnKind::kNvfp4 || columns.dynamic);
  return columns;
}

void place(Scratch& scratch, const Ops::Experts& args, Columns& columns) {
  const int64_t count = args.tokens * (columns.by_token ? 1 : args.top_k);
  columns.data = scratch.take<std::byte>(count * columns.stride);
  columns.scales = scratch.take<float>(count);
}

Product product_of(const Ops::Experts& args, const Grouping& grouping, Projection which, const Columns& columns,
                   float* out) {
  Product product;
  product.records = args.table.records;
  product.record_bytes = args.table.record.bytes;
  product.scalars = args.table.scalars;
  product.scalars_each = args.table.scalars_each;
  product.rows = which == kDown ? args.table.hidden : args.table.inner;
  product.inputs = columns.inputs;
  product.grouping = grouping;
  product.top_k = args.top_k;
  const auto& matrix = args.table.record.matrices[which];
  product.matrices[0] = {matrix.offset, matrix.scales_offset, which, columns, out};
  return product;
}

void multiply(const Context& context, bool many, ExpertFormat format, const Product& product) {
  if (many && product.matrices[0].columns.kind != ColumnKind::kFloats) {
    return expert::multiply_many(context, format, product);
  }
  switch (product.matrices[0].columns.kind) {
    case ColumnKind::kNvfp4:
      return expert::multiply_nvfp4(context, product);
    case ColumnKind::kInt8:
      return expert::multiply_int8(context, format, product);
    case ColumnKind::kFloats:
      return expert::multiply_floats(context, format, product);
  }
}

// Stage by stage, for any format of each matrix.
void run_stages(const Context& context, const Ops::Experts& args) {
  const Scratch::Scope scope(context.scratch);
  const int64_t pairs = args.tokens * args.top_k;
  const auto& matrices = args.table.record.matrices;
  const bool many = are_many(context, args);
  Grouping grouping;
  grouping.bound = static_cast<int>(expert::most_groups(pairs, args.table.experts));
  grouping.groups = context.scratch.take<expert::Group>(grouping.bound);
  grouping.order = context.scratch.take<int32_t>(pairs);
  grouping.slot_of = context.scratch.take<int32_t>(pairs);
  grouping.firsts = context.scratch.take<int32_t>(args.table.experts + 1);
  Columns columns[3] = {columns_of(args, kGate, many), columns_of(args, kUp, many), columns_of(args, kDown, many)};
  const bool shared = columns[kGate].by_token && columns[kUp].by_token && columns[kGate].kind == columns[kUp].kind &&
                      columns[kGate].order == columns[kUp].order;
  place(context.scratch, args, columns[kDown]);
  // The products of down take the place of what is needed before them.
  float* y = nullptr;
  {
    const Scratch::Scope later(context.scratch);
    y = context.scratch.take<float>(pairs * args.table.hidden);
  }
  place(context.scratch, args, columns[kGate]);
  if (shared) {
    columns[kUp] = columns[kGate];
  } else {
    place(context.scratch, args, columns[kUp]);
  }
  auto* gate = context.scratch.take<float>(pairs * args.table.inner);
  auto* up = context.scratch.take<float>(pairs * args.table.inner);
  if (context.plans()) return;

  expert::group_pairs(context, args.ids, pairs, args.table.experts, grouping);
  expert::make_input_columns(context, args, grouping, kGate, columns[kGate]);
  if (!shared) expert::make_input_columns(context, args, grouping, kUp, columns[kUp]);
  Product first = product_of(args, grouping, kGate, columns[kGate], gate);
  const Product second = product_of(args, grouping, kUp, columns[kUp], up);
  if (matrices[kGate].format == matrices[kUp].format) {
    first.matrices[1] = second.matrices[0];
    first.count = 2;
  } else {
    multiply(context, many, matrices[kUp].format, second);
  }
  multiply(context, many, matrices[kGate].format, first);
  expert::make_down_columns(context, args, grouping, gate, up, columns[kDown]);
  multiply(context, many, matrices[kDown].format, product_of(args, grouping, kDown, columns[kDown], y));
  expert::sum_experts(context, args, grouping, y);
}

}  // namespace

void experts(const Context& context, const Ops::Experts& args) {
  if (args.top_k > numeric::kMostExpertsPerToken) {
    base::internal_error("experts", "{} experts a token; the sum holds {}", args.top_k, numeric::kMostExpertsPerToken);
  }
  if (context.tensor_cores && expert::takes_few_nvfp4(context, args)) return expert::run_few_nvfp4(context, args);
  for (int64_t first = 0; first < args.tokens; first += kMostTokens) {
    Ops::Experts part = args;
    part.tokens = std::min(kMostTokens, args.tokens - first);
    part.x += first * args.table.hidden;
    part.ids += first * args.top_k;
    part.weights += first * args.top_k;
    part.lower += first * args.table.hidden;
    part.upper += first * args.table.hidden;
    part.faults += first;
    if (expert::takes_bf16(context, part)) {
      expert::run_bf16(context, part);
    } else {
      run_stages(context, part);
    }
  }
}

}  // namespace tandem::ops::cuda
