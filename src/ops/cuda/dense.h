// Dense products and embeddings on CUDA, in every weight format (ops/weight.h). Definition: ops::host::HostOps.
//
// A product takes one of three ways, chosen by the shape, the format and whether inputs are rounded:
//   few     at most kMostFewColumns columns of BF16 inputs. Bound by the weights' bytes, of four bits and less also by
//           decoding: they are read once and decoded in registers for the tensor cores. Eight columns take up to 1.2
//           times as long as one, of NVFP4 1.3 times: a block's scale is applied to each column's sum. The split of a
//           sum follows from the shape of the matrix alone, so a column has the bits that it has alone. NVFP4 and
//           integers of 3 and 4 bits must be in lanes' order (Ops::arrange).
//   exact   FP32 inputs, or shapes and formats that the other two do not take. One FMA a weight and column on the
//           ordinary cores; up to eight columns spread a row over a block, more take tiles of 64 x 64.
//   many    more columns of BF16 inputs. Bound by the tensor cores: inputs are rounded once, weights that are not BF16
//           are decoded slice by slice (2 bytes a weight written and read again), the product is cuBLASLt's where that
//           library can be loaded, else a kernel of our own.
//
// Sums are FP32 in an order of their own. With S = sum of |x w| over a row's inputs K, a result differs from the exact
// sum by at most about
//   few     2^-18 S: tensor cores cut off below 2^-23 of the largest term at each 16 inputs; at most 16 of these are in
//           a chain, and the chains are added in FP32. Of integers of 3 and 4 bits S has half a step more to each |w|
//   exact   (K / 256 + 80) 2^-24 S up to eight columns, K 2^-24 S in tiles
//   many    (K / 16 + 32) 2^-23 S, and 2^-8 S more where scales of blocks or groups are rounded into BF16 weights (FP8
//           blocks, integers); FP8 rows and tensors and NVFP4 are exact in BF16
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// Whether a matrix has an order for few columns other than the stored one; brings it into this, in place.
bool can_arrange(const Weight& w);
void arrange(const Context& context, const Weight& w);

// y [tokens, rows] = x [tokens, inputs] w^T.
void linear(const Context& context, const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y);
// Several products of the same inputs: one launch where they are alike and the columns few.
void linear_group(const Context& context, const float* x, int64_t tokens, std::span<const Ops::Product> products,
                  bool exact_inputs);
// y = the sum of both halves below, where one launch can do it; else false, and nothing was done.
bool linear_sum(const Context& context, const float* x, int64_t tokens, const Weight& w, float* y);
// y = silu(x gate^T) * (x up^T), where one launch can do it; else false, and nothing was done.
bool swiglu(const Context& context, const float* x, int64_t tokens, const Weight& gate, const Weight& up, float* y);
// The product over each half of the inputs.
void linear_halves(const Context& context, const float* x, int64_t tokens, const Weight& w, float* lower, float* upper);
// out [tokens, copies, inputs]: the row of each id, bit for bit as the host has it. The table may be shared memory.
void embed(const Context& context, const Weight& table, const int32_t* ids, int64_t tokens, int64_t copies, float* out);

// Whether many columns go to cuBLASLt: the library was loaded, and serves the current device.
bool dense_library_loaded();

}  // namespace tandem::ops::cuda
