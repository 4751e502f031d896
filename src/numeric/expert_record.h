// The record of a routed expert: its three matrices, each in a format of its own, as the artifact stores them and the
// kernels read them (docs/artifact.md, "Experts").
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "numeric/block_units.h"
#include "numeric/expert_format.h"

namespace tandem::numeric {

inline constexpr int64_t kExpertRecordAlignment = 4096;

// As artifacts spell it: "bf16", "nvfp4", "fp8_block", "iq2_s" and so on.
std::string_view expert_format_name(ExpertFormat format);
std::optional<ExpertFormat> expert_format_from_name(std::string_view name);

// Formats of gate, up and down.
using ExpertFormats = std::array<ExpertFormat, 3>;

struct ExpertRecord {
  struct Matrix {
    ExpertFormat format = ExpertFormat::kNvfp4;
    int64_t offset = 0;  // of the matrix in a record
    int64_t bytes = 0;
    int64_t scales_offset = 0;  // FP8 only: of its grid of scales
  };
  std::array<Matrix, 3> matrices;  // gate and up [inner, hidden], down [hidden, inner]
  int64_t bytes = 0;               // from one record to the next, a multiple of kExpertRecordAlignment
};

// The matrices one behind the other, then the FP8 ones' scales. Nothing where a format cannot hold the shape, which
// must be positive and whole units, or a record would be beyond 2^48 bytes.
std::optional<ExpertRecord> expert_record(const ExpertFormats& formats, int64_t inner, int64_t hidden);

// What rows and inputs of a matrix of the format are multiples of in both directions, so that up's rows are whole units
// of down's inputs: 1 for BF16. Formats of GGUF's blocks are less strict with their rows.
int64_t expert_multiple(ExpertFormat format);

// The tensor type of GGUF files, and how matrices of the format lie in records. REQUIRES: is_block_format(format).
GgmlType ggml_type_of(ExpertFormat format);
const BlockUnit& block_unit_of(ExpertFormat format);
// The format of a type that experts may have.
std::optional<ExpertFormat> expert_format_of(GgmlType type);

}  // namespace tandem::numeric
