// What the stages of the routed experts hand to each other.
#pragma once

#include <cstdint>

#include "numeric/expert_format.h"
#include "numeric/expert_limits.h"
#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/router_rows.cuh"
#include "ops/cuda/tensor_cores.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda::expert {

inline constexpr int kTileRows = 16;  // of a tile of any format but BF16

// The columns of one expert: slots [first, first + count). Slots are the (token, k) pairs sorted by expert, in token
// order within one.
struct Group {
  int32_t expert;
  int32_t first;
  int32_t count;
};
struct Grouping {
  Group* groups;   // `bound` of them, those without columns have the count 0; of many pairs, an expert may have several
  int32_t* order;  // by slot: the pair token * top_k + k; -1 behind the last
  int32_t* slot_of;  // by pair; -1 where its expert does not exist
  int32_t* firsts;   // [experts + 1], where there are many pairs
  int bound;
};

// 64 inputs of a column in the canonical 4-bit arithmetic, as the products of few columns take them.
struct Nvfp4Inputs {
  uint4 a[4];    // bytes A = 2 * E2M1 of a block; inputs 8 to 15 come first in odd blocks (experts_nvfp4.cuh says why)
  int32_t t[4];  // T' = 512 * E4M3
};

// What the products of a matrix take: FP32; NVFP4 blocks; or bytes q by blocks of 32 inputs, then FP32 scales of these.
enum class ColumnKind : uint8_t { kFloats, kNvfp4, kInt8 };
// Which input of its block of 32 a byte is, as the formats unpack their weights: the byte's own place; byte 16 j + 4 k
// + m is input 16 j + 4 m + k; byte 8 i + n is input 16 (n mod 2) + 4 i + n / 2.
enum class InputOrder : uint8_t { kNatural, kFourApart, kNibbles };

struct Columns {
  ColumnKind kind = ColumnKind::kFloats;
  InputOrder order = InputOrder::kNatural;
  bool by_token = false;  // else by slot
  bool dynamic = false;   // NVFP4 without input scales: each column has its own
  bool wide = false;      // NVFP4: bytes A [inputs] in order, then T' [inputs / 16], which tensor cores take
  int64_t inputs = 0;
  int64_t stride = 0;  // bytes
  std::byte* data = nullptr;
  float* scales = nullptr;  // NVFP4: the input scale of each column
};

InputOrder input_order(numeric::ExpertFormat format);

// The products of up to two matrices of a record that have one shape and one format.
struct Product {
  struct Matrix {
    int64_t offset = 0;         // in a record
    int64_t scales_offset = 0;  // FP8
    int which = 0;              // gate, up, down
    Columns columns;
    float* out = nullptr;  // [slots, rows]
  };
  const std::byte* records = nullptr;
  int64_t record_bytes = 0;
  const float* scalars = nullptr;
  int64_t scalars_each = 0;
  int64_t rows = 0;
  int64_t inputs = 0;
  Grouping grouping;
  int64_t top_k = 0;
  Matrix matrices[2];
  int count = 1;
};

// The stages, in order. `experts_*.cu` have them.
inline constexpr int kMostFewPairs = 128;
inline constexpr int kMostColumnsOfGroup = 64;  // where there are many pairs
int64_t most_groups(int64_t pairs, int64_t experts);
void group_pairs(const Context& context, const int32_t* ids, int64_t pairs, int64_t experts, const Grouping& to);
// The columns of gate or up, from x [tokens, inputs].
void make_input_columns(const Context& context, const Ops::Experts& args, const Grouping& grouping, int which,
                        const Columns& to);
// The columns of down, SwiGLU of the products of gate and up [slots, inner].
void make_down_columns(const Context& context, const Ops::Experts& args, const Grouping& grouping, const float* gate,
                       const float* up, const Columns& to);
void multiply_nvfp4(const Context& context, const Product& product);
void multiply_int8(const Context& context, numeric::ExpertFormat format, const Product& product);
void multiply_floats(const Context& context, numeric::ExpertFormat format, const Product& product);
// The same on tensor cores, for groups of up to kMostColumnsOfGroup; NVFP4 columns are wide.
void multiply_many(const Context& context, numeric::ExpertFormat format, const Product& product);
// The weighted sums of y [slots, hidden].
void sum_experts(const Context& context, const Ops::Experts& args, const Grouping& grouping, const float* y);

// What lies around the routed experts of a layer, where the same kernels do it: the choice of the experts before them,
// and beside them down of the shared expert.
struct Around {
  const float* logits = nullptr;   // [tokens, experts]; null: the experts alone
  int32_t* ids = nullptr;          // [tokens, top_k], written
  float* weights = nullptr;        // likewise
  const float* inner = nullptr;    // [tokens, inputs], what down of the shared expert is multiplied with
  const uint16_t* down = nullptr;  // BF16 [hidden, inputs]
  int inputs = 0;
  bool round = false;      // `inner` to BF16
  float* lower = nullptr;  // [tokens, hidden]: the shared expert's halves
  float* upper = nullptr;
  const float* gates = nullptr;  // [tokens]: sigmoid of these times the shared expert
  float* out = nullptr;          // [tokens, hidden]
};

// Layers of NVFP4 in all matrices with few columns, in fewer and faster launches than stage by stage.
inline constexpr int kMostFewExperts = 512;  // that they choose among
bool takes_few_nvfp4(const Context& context, const Ops::Experts& args, const Around& around = {});
void run_few_nvfp4(const Context& context, const Ops::Experts& args, const Around& around = {});

// The same of a single column with all that is around, and the router's rows before it, where takes_few_nvfp4 says yes
// too.
bool takes_alone(const Context& context, const Ops::Experts& args, const Around& around, const RouterRows& rows);
void run_alone(const Context& context, const Ops::Experts& args, const Around& around, const RouterRows& rows);

// ---- On the device ----

__device__ inline void mark_fault(int32_t* faults, int64_t token, int32_t fault) {
  if (faults[token] < 0) faults[token] = fault;  // all who write write the same
}

// prmt with all of a selector's bits: bit 3 asks for the sign of the byte, eight times.
__device__ inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
  return out;
}
// 0xFF where the byte's uppermost bit is set, else 0.
__device__ inline uint32_t byte_masks(uint32_t bytes) {
  return permute_bytes(bytes, 0, 0xba98);
}
// Four magnitudes, none of them zero where the mask says negative.
__device__ inline uint32_t negate_bytes(uint32_t magnitudes, uint32_t mask) {
  return (magnitudes ^ mask) + (mask & 0x01010101U);
}

__device__ inline int dot_signed(uint32_t a, uint32_t b, int sum) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
}

// 512 * E4M3 of a code without sign that stands at bits 20 to 26. As an FP32 the bits are 2^-120 of the value.
__device__ inline int e4m3_times_512(uint32_t at_bit_20) {
  return __float_as_int(fmaf(__uint_as_float(at_bit_20), 0x1p127F, 0x1.8p21F)) - 0x4a400000;
}

}  // namespace tandem::ops::cuda::expert
