// Embedding and dense products in every weight format.
#include <algorithm>

#include "base/units.h"
#include "ops/host/host_ops.h"

namespace tandem::ops::host {

namespace {

// Work worth handing to another thread: about 20 microseconds of FMAs.
constexpr int64_t kLinearGrain = 1 << 18;
constexpr int64_t kManyColumns = 9;  // from here on rows are decoded in blocks

}  // namespace

const float* HostOps::product_inputs(const float* x, int64_t count, bool exact_inputs) {
  if (!round_inputs_ || exact_inputs) return x;
  float* out = rounded_.get(count);
  pool_.run(count, 1 << 16,
            [&](int64_t begin, int64_t end) { kernels_.round_to_bf16(x + begin, end - begin, out + begin); });
  return out;
}

void HostOps::embed(const Weight& table, const int32_t* ids, int64_t tokens, int64_t copies, float* out) {
  const int64_t width = table.inputs;
  for (int64_t t = 0; t < tokens; ++t) {
    float* row = out + t * copies * width;
    kernels_.decode_row(table, ids[t], row);
    for (int64_t copy = 1; copy < copies; ++copy) std::copy_n(row, width, row + copy * width);
  }
}

void HostOps::run_linear(const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y, float* upper) {
  const float* inputs = product_inputs(x, tokens * w.inputs, exact_inputs);
  const int64_t products = std::max<int64_t>(1, tokens * w.inputs);
  const auto rows = [&](int64_t begin, int64_t end) {
    thread_local Scratch<float> scratch;
    kernels_.linear(inputs, w.inputs, tokens, w, begin, end, y, upper, w.rows,
                    scratch.get(dense_scratch_floats(w.inputs)));
  };
  if (tokens < kManyColumns) {
    pool_.run(w.rows, std::max<int64_t>(4, kLinearGrain / products), rows);
    return;
  }
  // Whole blocks of rows, or as large ones as leave every thread three.
  const int64_t share = base::ceil_div(w.rows, 3 * pool_.threads());
  const int64_t block = std::clamp<int64_t>(base::ceil_div(share, 4) * 4, 4, dense_block_rows(w.inputs));
  pool_.run(base::ceil_div(w.rows, block), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * block; row < std::min(end * block, w.rows); row += block) {
      rows(row, std::min(row + block, w.rows));
    }
  });
}

void HostOps::linear(const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y) {
  run_linear(x, tokens, w, exact_inputs, y, nullptr);
}

void HostOps::linear_halves(const float* x, int64_t tokens, const Weight& w, float* lower, float* upper) {
  run_linear(x, tokens, w, false, lower, upper);
}

}  // namespace tandem::ops::host
