// The speed of single operations of a card at the models' real sizes, for `tandem bench gpu`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace tandem::ops::cuda {

// One operation: what it must read, and how long it takes among others like it in a recording.
struct OpFigure {
  std::string name;  // "dense.nvfp4.c4"
  int64_t bytes = 0;
  double operations = 0;
  double seconds = 0;
};

// Dense products of [17408, 5120] at 1, 4 and 8 columns in every common format, over copies that no cache holds.
std::vector<OpFigure> measure_dense(device::Device& device, int rounds);
// A layer of routed experts, 10 of 512 of [640, 2560] for each of 1, 4 and 8 columns and no expert twice, in every
// format that artifacts have. In GGUF's formats of 256 weights down is IQ4_NL, as published.
std::vector<OpFigure> measure_experts(device::Device& device, int rounds);
// Attention of one column over 65,536 tokens with 8-bit keys and values, 24 heads over 4.
OpFigure measure_attention(device::Device& device, int rounds);
// How many times faster 4,096 tokens of Gated DeltaNet (48 heads of 128 x 128) are in chunks than token by token.
double measure_delta_speedup(device::Device& device, int rounds);

}  // namespace tandem::ops::cuda
