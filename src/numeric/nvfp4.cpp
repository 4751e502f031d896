#include "numeric/nvfp4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace tandem::numeric {

namespace {

static_assert(std::endian::native == std::endian::little, "code words are copied as the source's bytes");

void require_planes(size_t codes, size_t scales, int64_t rows, int64_t inputs) {
  if (rows < 0 || inputs < 0 || inputs % kNvfp4Block != 0) {
    base::bad_input("NVFP4", "a matrix [{}, {}] can't be cut in blocks of {} inputs", rows, inputs, kNvfp4Block);
  }
  if (codes != static_cast<size_t>(nvfp4_code_bytes(rows, inputs)) ||
      scales != static_cast<size_t>(nvfp4_scale_bytes(rows, inputs))) {
    base::internal_error("NVFP4", "a matrix [{}, {}] has {} bytes of codes and {} of scales, not {} and {}", rows,
                         inputs, nvfp4_code_bytes(rows, inputs), nvfp4_scale_bytes(rows, inputs), codes, scales);
  }
}

float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

uint8_t encode_block_scale(float amax, float tensor_scale) {
  if (amax == 0) return e4m3_from_float(1.0f);
  return e4m3_from_float(std::clamp(amax / (6.0f * tensor_scale), 0x1p-9f, kE4m3Max));
}

}  // namespace

void nvfp4_decode_block(const uint8_t* codes, uint8_t scale, Nvfp4Scale tensor_scale, float* out) {
  const float block_scale = e4m3_to_float(scale);
  for (int64_t i = 0; i < kNvfp4Block; ++i) {
    const uint8_t byte = codes[i / 2];
    const uint8_t code = i % 2 == 0 ? byte & 15u : byte >> 4;
    out[i] = tensor_scale.apply(e2m1_to_float(code) * block_scale);
  }
}

void nvfp4_decode(std::span<const uint8_t> codes, std::span<const uint8_t> scales, int64_t rows, int64_t inputs,
                  Nvfp4Scale tensor_scale, std::span<float> out) {
  require_planes(codes.size(), scales.size(), rows, inputs);
  if (out.size() != static_cast<size_t>(rows * inputs)) {
    base::internal_error("NVFP4", "{} values do not fill a matrix [{}, {}]", out.size(), rows, inputs);
  }
  for (size_t block = 0; block < scales.size(); ++block) {
    nvfp4_decode_block(&codes[block * 8], scales[block], tensor_scale, &out[block * 16]);
  }
}

float nvfp4_tensor_scale(std::span<const float> weights) {
  return largest_magnitude(weights) / kNvfp4Range;
}

float nvfp4_encode(std::span<const float> weights, int64_t rows, int64_t inputs, std::span<uint8_t> codes,
                   std::span<uint8_t> scales) {
  require_planes(codes.size(), scales.size(), rows, inputs);
  if (weights.size() != static_cast<size_t>(rows * inputs)) {
    base::internal_error("NVFP4", "{} values do not fill a matrix [{}, {}]", weights.size(), rows, inputs);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i])) {
      base::bad_input("NVFP4", "the weight at row {}, input {} is {}", i / static_cast<size_t>(inputs),
                      i % static_cast<size_t>(inputs), weights[i]);
    }
  }
  const float tensor_scale = nvfp4_tensor_scale(weights);
  for (size_t block = 0; block < scales.size(); ++block) {
    const std::span<const float> values = weights.subspan(block * 16, 16);
    scales[block] = encode_block_scale(largest_magnitude(values), tensor_scale);
    const float step = e4m3_to_float(scales[block]) * tensor_scale;
    for (size_t pair = 0; pair < 8; ++pair) {
      // 0 / 0 where the tensor scale itself rounds to zero must not become a code of 6.
      const auto encode = [step](float value) { return value == 0 ? uint8_t{0} : e2m1_from_float(value / step); };
      codes[block * 8 + pair] = static_cast<uint8_t>(encode(values[2 * pair]) | (encode(values[2 * pair + 1]) << 4));
    }
  }
  return tensor_scale;
}

void nvfp4_check_scales(std::span<const uint8_t> scales, int64_t blocks_per_row, const std::string& tensor) {
  const auto bad = [](uint8_t scale) { return scale >= 0x7F; };  // 0x7F is NaN, above it bit 7 is set
  const auto found = std::find_if(scales.begin(), scales.end(), bad);
  if (found == scales.end()) return;
  const int64_t index = found - scales.begin();
  base::bad_input(
      tensor, "the block scale at row {}, block {} is 0x{:02X}, {}; a scale is an E4M3 code from 0x00 to 0x7E",
      index / blocks_per_row, index % blocks_per_row, *found, e4m3_is_nan(*found) ? "not a number" : "negative");
}

int64_t nvfp4_record_bytes(int64_t rows, int64_t inputs) {
  if (rows <= 0 || inputs <= 0 || rows % kNvfp4UnitRows != 0 || inputs % kNvfp4UnitInputs != 0) {
    base::bad_input("NVFP4", "a matrix [{}, {}] can't be cut in units of {} rows and {} inputs", rows, inputs,
                    kNvfp4UnitRows, kNvfp4UnitInputs);
  }
  return rows / kNvfp4UnitRows * (inputs / kNvfp4UnitInputs) * static_cast<int64_t>(sizeof(Nvfp4Unit));
}

namespace {

// Calls visit(unit, codes, scales) for every unit in storage order: byte offset of the unit, and of its first row's
// first code and scale.
template <typename Visit>
void for_each_unit(int64_t rows, int64_t inputs, Visit visit) {
  size_t unit = 0;
  for (int64_t row = 0; row < rows; row += kNvfp4UnitRows) {
    for (int64_t input = 0; input < inputs; input += kNvfp4UnitInputs) {
      visit(unit, static_cast<size_t>(row * (inputs / 2) + input / 2),
            static_cast<size_t>(row * (inputs / kNvfp4Block) + input / kNvfp4Block));
      unit += sizeof(Nvfp4Unit);
    }
  }
}

void require_units(size_t bytes, int64_t rows, int64_t inputs) {
  if (bytes != static_cast<size_t>(nvfp4_record_bytes(rows, inputs))) {
    base::internal_error("NVFP4", "a matrix [{}, {}] has {} bytes of units, not {}", rows, inputs,
                         nvfp4_record_bytes(rows, inputs), bytes);
  }
}

}  // namespace

void pack_units(std::span<const uint8_t> codes, std::span<const uint8_t> scales, int64_t rows, int64_t inputs,
                std::span<std::byte> units) {
  require_units(units.size(), rows, inputs);
  require_planes(codes.size(), scales.size(), rows, inputs);
  const auto code_stride = static_cast<size_t>(inputs / 2);
  const auto scale_stride = static_cast<size_t>(inputs / kNvfp4Block);
  for_each_unit(rows, inputs, [&](size_t at, size_t code, size_t scale) {
    Nvfp4Unit unit;
    for (size_t r = 0; r < kNvfp4UnitRows; ++r) {
      for (size_t w = 0; w < 8; ++w) std::memcpy(&unit.codes[w][r], &codes[code + r * code_stride + 4 * w], 4);
      std::memcpy(unit.scales[r], &scales[scale + r * scale_stride], 4);
    }
    std::memcpy(&units[at], &unit, sizeof unit);
  });
}

void unpack_units(std::span<const std::byte> units, int64_t rows, int64_t inputs, std::span<uint8_t> codes,
                  std::span<uint8_t> scales) {
  require_units(units.size(), rows, inputs);
  require_planes(codes.size(), scales.size(), rows, inputs);
  const auto code_stride = static_cast<size_t>(inputs / 2);
  const auto scale_stride = static_cast<size_t>(inputs / kNvfp4Block);
  for_each_unit(rows, inputs, [&](size_t at, size_t code, size_t scale) {
    Nvfp4Unit unit;
    std::memcpy(&unit, &units[at], sizeof unit);
    for (size_t r = 0; r < kNvfp4UnitRows; ++r) {
      for (size_t w = 0; w < 8; ++w) std::memcpy(&codes[code + r * code_stride + 4 * w], &unit.codes[w][r], 4);
      std::memcpy(&scales[scale + r * scale_stride], unit.scales[r], 4);
    }
  });
}

}  // namespace tandem::numeric
