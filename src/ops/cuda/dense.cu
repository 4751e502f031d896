// Chooses a product's way (ops/cuda/dense.h).
#include <algorithm>
#include <vector>

#include "ops/cuda/dense.h"
#include "ops/cuda/dense_paths.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

namespace {

bool takes_few(const Context& context, const dense::Product& product) {
  return product.tokens <= kMostFewColumns && product.round && context.tensor_cores &&
         dense::few_columns_serve(product);
}

void run_product(const Context& context, const dense::Product& product) {
  if (product.tokens <= 0 || product.w.rows <= 0) return;
  if (product.tokens <= kMostFewColumns) {
    if (takes_few(context, product)) return dense::few_columns_linear(context, {&product, 1});
  } else if (product.round && dense::many_columns_serve(product)) {
    return dense::many_columns_linear(context, product, context.tensor_cores);
  }
  dense::exact_linear(context, product);
}

}  // namespace

void linear(const Context& context, const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y) {
  run_product(context, {.x = x, .tokens = tokens, .w = w, .round = context.round_inputs && !exact_inputs, .y = y});
}

void linear_halves(const Context& context, const float* x, int64_t tokens, const Weight& w, float* lower,
                   float* upper) {
  run_product(context, {.x = x, .tokens = tokens, .w = w, .round = context.round_inputs, .y = lower, .upper = upper});
}

void linear_group(const Context& context, const float* x, int64_t tokens, std::span<const Ops::Product> products,
                  bool exact_inputs) {
  std::vector<dense::Product> all;
  for (const Ops::Product& product : products) {
    all.push_back(
        {.x = x, .tokens = tokens, .w = product.w, .round = context.round_inputs && !exact_inputs, .y = product.y});
  }
  const bool few =
      std::all_of(all.begin(), all.end(), [&](const auto& product) { return takes_few(context, product); });
  if (few && dense::few_columns_share(all)) return dense::few_columns_linear(context, all);
  for (const dense::Product& product : all) run_product(context, product);
}

bool linear_sum(const Context& context, const float* x, int64_t tokens, const Weight& w, float* y) {
  const dense::Product product{
      .x = x, .tokens = tokens, .w = w, .round = context.round_inputs, .y = y, .add_halves = true};
  if (!takes_few(context, product)) return false;
  dense::few_columns_linear(context, {&product, 1});
  return true;
}

bool swiglu(const Context& context, const float* x, int64_t tokens, const Weight& gate, const Weight& up, float* y) {
  dense::Product product{.x = x, .tokens = tokens, .w = gate, .round = context.round_inputs, .y = y};
  dense::Product other = product;
  other.w = up;
  if (!takes_few(context, product) || !takes_few(context, other)) return false;
  const dense::Product both[] = {product, other};
  if (gate.rows != up.rows || !dense::few_columns_share(both)) return false;
  product.paired = true;
  product.up = up;
  dense::few_columns_linear(context, {&product, 1});
  return true;
}

}  // namespace tandem::ops::cuda
