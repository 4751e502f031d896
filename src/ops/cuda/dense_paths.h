// The ways that a dense product can take (ops/cuda/dense.h), for dense.cu and for tests of one of them. Plain C++.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda/context.h"
#include "ops/weight.h"

namespace tandem::ops::cuda::dense {

// One product. With `upper` the sums over the lower half of the inputs go to `y`, those over the upper half to `upper`.
struct Product {
  const float* x = nullptr;  // [tokens, inputs]
  int64_t tokens = 0;
  Weight w;
  bool round = false;  // x is rounded to BF16
  float* y = nullptr;  // [tokens, rows]
  float* upper = nullptr;
  bool add_halves = false;  // y is the sum of what the halves give, each finished by itself; without `upper`
  bool paired = false;      // few columns alone: y = silu(x w^T) * (x up^T), of matrices of one shape and format
  Weight up = {};
};

bool few_columns_serve(const Product& product);
// Whether products of the same inputs can be one launch.
bool few_columns_share(std::span<const Product> products);
void few_columns_linear(const Context& context, std::span<const Product> products);

// Serves everything.
void exact_linear(const Context& context, const Product& product);

bool many_columns_serve(const Product& product);
// `library`: by cuBLASLt, where it is loaded.
void many_columns_linear(const Context& context, const Product& product, bool library);

// ---- Parts of the way for many columns ----------------------------------------------------------------------------

// d [tokens, rows], `stride` floats apart = factor * x w^T; x and w are BF16 with `x_stride` and `w_stride` elements
// between rows.
struct Bf16Product {
  const uint16_t* x = nullptr;
  int64_t tokens = 0;
  int64_t x_stride = 0;
  const uint16_t* w = nullptr;
  int64_t rows = 0;
  int64_t w_stride = 0;
  int64_t inputs = 0;
  float* d = nullptr;
  int64_t d_stride = 0;
  float factor = 1.0F;
  const float* row_factors = nullptr;  // [rows] in place of `factor`; cuBLASLt alone takes these
};

// Of our own: `scales` (the first is that of the product's first row) and `divides` are applied to the sums.
void tile_product(const Context& context, const Bf16Product& product, const Weight& w, int64_t first_row);

// By cuBLASLt, where dense_library_loaded(). library_serves chooses the library's way for a shape, once; a product that
// it does not serve must not be asked for. `workspace` has library_workspace() bytes.
bool library_serves(const Bf16Product& product);
void prepare_library();  // for the current device; allocates, and so must come before a recording
void library_product(const Context& context, const Bf16Product& product, std::byte* workspace);
int64_t library_workspace();

}  // namespace tandem::ops::cuda::dense
