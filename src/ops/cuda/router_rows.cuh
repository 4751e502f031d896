// The rows that read a layer's columns first: the router's, the shared expert's gate, and its gate and up, as products
// of few columns take them (router_few.cu, experts_alone_rows.cuh).
#pragma once

#include "ops/cuda/bf16_dot.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda {

inline constexpr int kRowThreads = 256;  // that share a part
inline constexpr int kRowsOfPart = 4;
inline constexpr int kMostRowSteps = 4;  // of 4 * kRowThreads inputs

struct RouterRows {
  const float* x = nullptr;
  int tokens = 0;
  int inputs = 0;
  int experts = 0;
  const uint16_t* router = nullptr;
  const uint16_t* gate = nullptr;
  float* logits = nullptr;
  float* gates = nullptr;
  // Of the shared expert: silu(gate x) * up x [tokens, inner].
  const uint16_t* inner_gate = nullptr;
  const uint16_t* inner_up = nullptr;
  int inner = 0;  // 0: without it
  bool round = false;
  float* inner_out = nullptr;

  // Parts of kRowsOfPart rows: of the router; the shared expert's gate; its inner rows.
  int parts() const {
    return static_cast<int>(base::ceil_div(experts, kRowsOfPart) + 1 + base::ceil_div(inner, kRowsOfPart / 2));
  }
};

// What a part is: four rows of the router; the shared expert's gate, by itself; or two rows of the gate and of the
// up of the shared expert.
struct RowsPart {
  bool gates, inner;
  int first_row;
  int last_row;  // of the matrix: what lies behind repeats it
  __device__ RowsPart(const RouterRows& args, int number) {
    const int routers = (args.experts + kRowsOfPart - 1) / kRowsOfPart;
    gates = number == routers;
    inner = number > routers;
    first_row = gates ? 0 : inner ? (number - routers - 1) * (kRowsOfPart / 2) : number * kRowsOfPart;
    last_row = (gates ? 1 : inner ? args.inner : args.experts) - 1;
  }
  __device__ const uint16_t* row(const RouterRows& args, int r) const {
    const uint16_t* matrix = gates                 ? args.gate
                             : !inner              ? args.router
                             : r < kRowsOfPart / 2 ? args.inner_gate
                                                   : args.inner_up;
    return matrix + static_cast<int64_t>(min(first_row + (inner ? r % (kRowsOfPart / 2) : r), last_row)) * args.inputs;
  }
};

}  // namespace tandem::ops::cuda
