// Writes checkpoints as GGUF files, byte by byte and by what llama.cpp's converter does to names, values and orders:
// independent of the reader but for the names (gguf_names_test.cpp).
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "numeric/ggml_types.h"

namespace tandem::testing {

// Bytes for a tensor in place of its values: the shape is in C order.
struct GgufBlocks {
  numeric::GgmlType type;
  std::string data;
};
using MakeBlocks = std::function<std::optional<GgufBlocks>(const std::string& name, const std::vector<int64_t>& shape)>;

struct GgufOptions {
  bool only_experts = false;
  bool joined_gate_up = false;  // ffn_gate_up_exps
  MakeBlocks blocks;            // nothing: F32 for vectors, BF16 or F32 as the checkpoint has it for all else
};

void write_gguf(const checkpoint::Checkpoint& source, const std::string& architecture,
                const std::filesystem::path& path, const GgufOptions& options = {});

// All elements of a plain tensor, or of one expert's matrix of a fused one.
std::vector<float> floats_of(const checkpoint::Checkpoint& source, const std::string& name);

// Random blocks of the type, with scales around 2^-8 that are powers of two where `exact` is set.
std::string random_blocks(numeric::GgmlType type, int64_t elements, uint64_t seed, bool exact = false);

}  // namespace tandem::testing
