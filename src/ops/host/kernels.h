// The inner loops of the host operations, chosen once by what the processor can do.
//
// All sets are compiled from the same source (kernels/*.h) and give the same bits. All pointers are to C-order arrays;
// no kernel allocates, throws or starts threads, and all may run at once on different outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/expert_format.h"
#include "ops/weight.h"

namespace tandem::base {
enum class CpuLevel;  // base/cpu.h, which the kernels' sources cannot include
}

namespace tandem::ops::host {

using numeric::ExpertFormat;

// Keys and values of up to kAttentionPiece tokens of one kv head, by token.
inline constexpr int64_t kAttentionPiece = 256;
struct AttentionPiece {
  const void* keys[kAttentionPiece];
  const void* values[kAttentionPiece];
  int64_t count = 0;
  bool bf16 = true;
};

// Running softmax of one query head: the largest score, the sum of exponentials, the weighted values.
struct SoftmaxState {
  float largest;
  float sum;
};

// One head of one 64-token chunk or of single steps of Gated DeltaNet.
struct DeltaHead {
  const float* query;  // [tokens, stride]: key_dim values each, before normalisation
  const float* key;
  const float* value;  // [tokens, stride]: value_dim values each
  int64_t stride;      // floats from one token to the next
  const float* beta;   // [tokens, gate_stride]
  const float* decay;  // [tokens, gate_stride]: g <= 0
  int64_t gate_stride;
  int64_t tokens;
  int64_t key_dim;
  int64_t value_dim;
  float* state;  // [key_dim, value_dim]
  float* out;    // [tokens, out_stride]
  int64_t out_stride;
};

// ---- Experts (docs/architecture.md, "Numbers") ----
// Matrices of experts lie in tiles of 16 rows (docs/artifact.md). A product takes one tile and any number of columns,
// and gives out[16 * c + r] for column c and row r.

inline constexpr int64_t kExpertTileRows = 16;

// 16 inputs of one column, quantised for the canonical 4-bit product.
struct Nvfp4Block {
  int32_t values[4];  // bytes A = 2 * E2M1 of inputs 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15: the units' nibble order
  int32_t scale;      // T' = 512 * E4M3
  int32_t start;      // -12 * the sum of A: the products take 2 * E2M1 + 12 of the weights
};

// 32 inputs of one column, quantised to 8 bits (numeric/int8_activation.h).
struct Int8Block {
  int32_t values[8];  // bytes q, in the order in which the kernels of the format take the inputs
  float scale;
  int32_t start[2];  // takes off what was added to the weights to make them unsigned; apart for each half of the words
                     // where a format scales them apart
};

// What the products of the i-quants look up, in two forms. Codes of IQ2_S and IQ3_S are those of units
// (numeric/iquant_codes.h).
struct IquantTables {
  // Entries by code, a byte a magnitude.
  alignas(64) uint32_t iq2s[1024][2];
  alignas(64) uint32_t iq3s[512];
  alignas(64) uint32_t iq3xxs[256];

  // For look-ups of 64 bytes in registers, which ignore bits 6 and 7 of an index: a codebook in two parts, one of them
  // shared by codes, then the weight plus 128 of a part of each and a sign.
  //
  // IQ2_S: a digit i is two bits, of which as many are set as 25, 8, 43 have place in 0, 1, 2. Bit 2i of iq2s_own[c]
  // and bit 2i + 1 of iq2s_shared[c % 64] for i < 4; bit 2i - 8 of shared and 2i - 7 of own for the others.
  // iq2s_weights[s]: bits 0 and 1 a digit, 2 + s the sign.
  alignas(64) uint8_t iq2s_own[1024];
  alignas(64) uint8_t iq2s_shared[64];
  alignas(64) uint8_t iq2s_weights[2][64];
  // IQ3_S: bits 2i and 2i + 1 of iq3s_own[c] choose one of four magnitudes at place i, one bit of iq3s_shared[c % 256]
  // the set of four: bits 2, 0, 6, 4 for places 0 to 3. iq3s_weights[i]: bits 0 and 1 the former, 2 the latter, 3 the
  // sign.
  alignas(64) uint8_t iq3s_own[512];
  alignas(64) uint8_t iq3s_shared[256];
  alignas(64) uint8_t iq3s_weights[4][64];
  // IQ3_XXS: the numbers of magnitudes (4, 12, … 52, 62) at places 0 and 1, 2 and 3; the magnitude plus 128 of bits 0
  // to 2.
  alignas(64) uint8_t iq3xxs_halves[2][256];
  alignas(64) uint8_t iq3xxs_magnitudes[64];
};
const IquantTables& iquant_tables();

// A tile of weights, and where the worker's stream of weights goes on behind it: that much is fetched ahead of use.
struct Tile {
  const std::byte* data = nullptr;
  const std::byte* next = nullptr;
  const uint16_t* scales = nullptr;  // FP8: the tile's BF16 multipliers, one to 128 inputs
};
inline constexpr int64_t kExpertPrefetchNear = 1024;
inline constexpr int64_t kExpertPrefetchFar = 5120;

// Rows of a matrix that are decoded together for many columns: they stay in a second-level cache of 1 MiB.
inline constexpr int64_t kMostBlockRows = 32;
constexpr int64_t dense_block_rows(int64_t inputs) {
  return inputs <= 8192 ? kMostBlockRows : kMostBlockRows / 2;
}
inline constexpr int64_t kMostBlockedColumns = 8;
// Floats that a product needs beside its operands: a block of rows, and sixteen lanes a sum.
constexpr int64_t dense_scratch_floats(int64_t inputs) {
  return dense_block_rows(inputs) * (inputs + 16 * kMostBlockedColumns);
}

struct Kernels {
  const char* name;

  // y[t, n] = sum over k of x[t, k] * w[n, k] for n in [row_begin, row_end). Weights are decoded to FP32 with their
  // scales of blocks and groups (exact, or rounded once where such a scale is FP32), summed in lanes of 16 along k, one
  // accumulator a lane, and reduced in a fixed tree; the sum takes what scales the row or the tensor. The bits depend
  // on neither the number of columns nor the range of rows. With `y_upper` the inputs [0, K/2) go to y and [K/2, K) to
  // y_upper. `scratch` has dense_scratch_floats(inputs); BF16 and FP32 weights need none for up to eight columns.
  void (*linear)(const float* x, int64_t x_stride, int64_t columns, const Weight& w, int64_t row_begin, int64_t row_end,
                 float* y, float* y_upper, int64_t y_stride, float* scratch);
  // Row `row` of any matrix in FP32, all scales applied.
  void (*decode_row)(const Weight& w, int64_t row, float* out);
  void (*round_to_bf16)(const float* x, int64_t count, float* out);  // to nearest even, back in FP32

  // out = x * rsqrt(mean(x^2) + eps) * (one_plus + weight)
  void (*rms_norm)(const float* x, int64_t width, float eps, float one_plus, const float* weight, float* out);
  void (*silu_scaled)(float* x, int64_t count, float scale);                   // x = silu(x * scale)
  void (*sigmoid_scaled)(float* x, int64_t count, float scale, float factor);  // x = factor * sigmoid(x * scale)
  void (*silu_multiply)(const float* gate, const float* up, int64_t count, float* out);
  // values *= act(gate), act silu or sigmoid
  void (*multiply_gate)(float* values, const float* gate, int64_t count, bool sigmoid_gate);
  void (*add_scaled)(float* y, const float* x, float scale, int64_t count);  // y = fma(x, scale, y)
  // out[d] = (1/streams) * sum over s of sigmoid(gate[s, d]) * x[s, d]
  void (*mix_streams)(const float* gate, const float* x, int64_t streams, int64_t width, float* out);

  // Depthwise causal convolution of one token: out[c] = act(sum over j of w[j, c] * taps[j][c]), taps oldest first.
  void (*convolve)(const float* const* taps, int64_t kernel, const float* weight, int64_t channels, float* out);

  void (*delta_steps)(const DeltaHead& head);
  void (*delta_chunk)(const DeltaHead& head, float* workspace);          // exactly 64 tokens
  int64_t (*delta_chunk_workspace)(int64_t key_dim, int64_t value_dim);  // floats

  // Adds one piece to the running softmax of one query head. acc is [dim].
  void (*attention_piece)(const float* query, int64_t dim, float scale, const AttentionPiece& piece,
                          SoftmaxState& state, float* acc);
  // Merges a later partial result into an earlier one.
  void (*attention_merge)(SoftmaxState& into, float* into_acc, const SoftmaxState& from, const float* from_acc,
                          int64_t dim);
  // scores[b] = scale * sum over h of max(0, queries[h] . keys[b])
  void (*block_scores)(const float* queries, int64_t heads, int64_t dim, float scale, const void* const* keys,
                       bool bf16, int64_t count, float* scores);

  // Quantises x [inputs], a multiple of 16, as numeric/activation.h defines it; false where a value is not finite.
  bool (*quantise_nvfp4)(const float* x, int64_t inputs, float input_scale, Nvfp4Block* out);
  // Canonical 4-bit product: y = float(R) * 2^-20 * scale, scale = weight_scale * input_scale, one for each column.
  void (*nvfp4_w4a4)(const Tile& tile, int64_t inputs, const Nvfp4Block* const* columns, int64_t count,
                     const float* scales, float* out);
  // With FP32 activations: y = scale * sum over inputs in order of x * E2M1 * E4M3.
  void (*nvfp4_w4a16)(const std::byte* tile, int64_t inputs, const float* const* columns, int64_t count, float scale,
                      float* out);
  // Quantises x [inputs], a multiple of 32, as numeric/int8_activation.h defines it, for a format that
  // takes_int8_activations; false where a value is not finite.
  bool (*quantise_int8)(ExpertFormat format, const float* x, int64_t inputs, Int8Block* out);
  // A tile of such a format: y = sum over blocks of 32 inputs in order of fma(float(I), factor * scale, y), as
  // numeric::int8_row_product and numeric::fp8_row_product define it.
  void (*int8_product)(ExpertFormat format, const Tile& tile, int64_t inputs, const Int8Block* const* columns,
                       int64_t count, float* out);
  // sums[i] += llrint(p * y[i] * 2^32) for 16 channels, p * y rounded to FP32. False where a term is not below
  // numeric::kLargestExpertTerm in magnitude; such a term adds nothing.
  bool (*add_weighted)(const float* y, float p, int64_t* sums);
};

// The best set for this processor; throws base::Error where it lacks AVX2.
const Kernels& kernels();
// The set of a level; throws base::Error with what the processor lacks for it.
const Kernels& kernels(base::CpuLevel level);
// Each set, for tests and benches; null where this processor cannot run it.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512vbmi_kernels();

}  // namespace tandem::ops::host
