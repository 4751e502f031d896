// The kernels of one instruction set as a table; included by the two files that compile it.
#include "ops/host/kernels/attention.h"
#include "ops/host/kernels/delta.h"
#include "ops/host/kernels/dense.h"
#include "ops/host/kernels/elementwise.h"
#include "ops/host/kernels/expert_columns.h"
#include "ops/host/kernels/int8_units.h"
#include "ops/host/kernels/linear.h"
#include "ops/host/kernels/nvfp4.h"

namespace tandem::ops::host::TANDEM_ISA {

extern const Kernels kTable;
const Kernels kTable = {
    .name = TANDEM_ISA_NAME,
    .linear = linear,
    .decode_row = decode_row,
    .round_to_bf16 = round_to_bf16,
    .rms_norm = rms_norm,
    .silu_scaled = silu_scaled,
    .sigmoid_scaled = sigmoid_scaled,
    .silu_multiply = silu_multiply,
    .multiply_gate = multiply_gate,
    .add_scaled = add_scaled,
    .mix_streams = mix_streams,
    .convolve = convolve,
    .delta_steps = delta_steps,
    .delta_chunk = delta_chunk,
    .delta_chunk_workspace = delta_chunk_workspace,
    .attention_piece = attention_piece,
    .attention_merge = attention_merge,
    .block_scores = block_scores,
    .quantise_nvfp4 = quantise_nvfp4,
    .nvfp4_w4a4 = nvfp4_w4a4,
    .nvfp4_w4a16 = nvfp4_w4a16,
    .quantise_int8 = quantise_int8,
    .int8_product = int8_product,
    .add_weighted = add_weighted,
};

}  // namespace tandem::ops::host::TANDEM_ISA
