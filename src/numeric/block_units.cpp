#include "numeric/block_units.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "numeric/expert_reference.h"
#include "numeric/int8_activation.h"
#include "numeric/iq2_s.h"
#include "numeric/iq3_s.h"
#include "numeric/iq3_xxs.h"
#include "numeric/iq4_nl.h"
#include "numeric/iq4_xs.h"
#include "numeric/iquant_codes.h"
#include "numeric/q2_0.h"

namespace tandem::numeric {

namespace {

constexpr BlockUnit unit_of(GgmlType type, int64_t inputs, int64_t words, int64_t scales) {
  return {type, inputs, words, scales, kBlockUnitRows * (4 * words + 2 * scales)};
}

constexpr std::array<BlockUnit, 6> kUnits = {
    unit_of(GgmlType::kIq2s, 256, 20, 1),  unit_of(GgmlType::kIq3xxs, 256, 24, 1), unit_of(GgmlType::kIq3s, 256, 27, 1),
    unit_of(GgmlType::kIq4xs, 256, 34, 0), unit_of(GgmlType::kIq4nl, 64, 8, 2),    unit_of(GgmlType::kQ2_0, 128, 8, 2),
};
static_assert(kUnits[0].row_bytes() == sizeof(Iq2sBlock) && kUnits[1].row_bytes() == sizeof(Iq3xxsBlock) &&
              kUnits[2].row_bytes() == sizeof(Iq3sBlock) && kUnits[3].row_bytes() == sizeof(Iq4xsBlock) &&
              kUnits[4].row_bytes() == 2 * sizeof(Iq4nlBlock) && kUnits[5].row_bytes() == 2 * sizeof(Q2_0Block));
// I of every format is exact in FP32: 32 terms of 127 times the largest grid or step and scale.
static_assert(32 * 127 * 43 * 31 < 1 << 24 && 32 * 127 * 62 * 31 < 1 << 24 && 32 * 127 * 127 * 32 < 1 << 24);

// Where word w and scale b of a row's share of a unit stand in the file's bytes.
int64_t word_in_row(const BlockUnit& unit, int64_t w) {
  if (unit.scales == 0) return 4 * w;
  const int64_t words_per_block = unit.words / unit.scales;
  return w / words_per_block * (4 * words_per_block + 2) + 2 + w % words_per_block * 4;
}
int64_t scale_in_row(const BlockUnit& unit, int64_t b) {
  return b * (unit.row_bytes() / unit.scales);
}

// One row's share of a unit, with the words in the unit's order.
struct RowWords {
  std::array<uint8_t, 136> words;
  std::array<uint8_t, 4> scales;
};
// In the file a row's share is one or two blocks.
void load_file_row(const BlockUnit& unit, const std::byte* from, RowWords& row) {
  for (int64_t w = 0; w < unit.words; ++w) std::memcpy(row.words.data() + 4 * w, from + word_in_row(unit, w), 4);
  for (int64_t b = 0; b < unit.scales; ++b) std::memcpy(row.scales.data() + 2 * b, from + scale_in_row(unit, b), 2);
  to_unit_words(unit.type, std::span(row.words).first(static_cast<size_t>(4 * unit.words)));
}
void store_file_row(const BlockUnit& unit, RowWords& row, std::byte* to) {
  from_unit_words(unit.type, std::span(row.words).first(static_cast<size_t>(4 * unit.words)));
  for (int64_t w = 0; w < unit.words; ++w) std::memcpy(to + word_in_row(unit, w), row.words.data() + 4 * w, 4);
  for (int64_t b = 0; b < unit.scales; ++b) std::memcpy(to + scale_in_row(unit, b), row.scales.data() + 2 * b, 2);
}
// In a unit it is spread over the lanes of the words.
int64_t word_in_unit(int64_t w, int64_t lane) {
  return (w * kBlockUnitRows + lane) * 4;
}
int64_t scale_in_unit(const BlockUnit& unit, int64_t b, int64_t lane) {
  return unit.words * kBlockUnitRows * 4 + (b * kBlockUnitRows + lane) * 2;
}
void load_unit_row(const BlockUnit& unit, const std::byte* from, int64_t lane, RowWords& row) {
  for (int64_t w = 0; w < unit.words; ++w) std::memcpy(row.words.data() + 4 * w, from + word_in_unit(w, lane), 4);
  for (int64_t b = 0; b < unit.scales; ++b) {
    std::memcpy(row.scales.data() + 2 * b, from + scale_in_unit(unit, b, lane), 2);
  }
}
void store_unit_row(const BlockUnit& unit, const RowWords& row, int64_t lane, std::byte* to) {
  for (int64_t w = 0; w < unit.words; ++w) std::memcpy(to + word_in_unit(w, lane), row.words.data() + 4 * w, 4);
  for (int64_t b = 0; b < unit.scales; ++b) {
    std::memcpy(to + scale_in_unit(unit, b, lane), row.scales.data() + 2 * b, 2);
  }
}

// Calls share(offset of the unit, lane, offset in the rows) for every row's share of every unit.
template <typename Share>
void for_shares(const BlockUnit& unit, int64_t rows, int64_t inputs, const Share& share) {
  const int64_t units = inputs / unit.inputs;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t u = 0; u < units; ++u) {
      share((row / kBlockUnitRows * units + u) * unit.bytes, row % kBlockUnitRows,
            (row * units + u) * unit.row_bytes());
    }
  }
}

void require_sizes(const BlockUnit& unit, int64_t rows, int64_t inputs, size_t first, size_t second) {
  const auto bytes = static_cast<size_t>(block_unit_bytes(unit, rows, inputs));
  if (first != bytes || second != bytes) {
    base::internal_error(ggml_type(unit.type).name.data(), "a matrix [{}, {}] has {} bytes, not {} and {}", rows,
                         inputs, bytes, first, second);
  }
}

template <typename Block>
Block block_at(std::span<const std::byte> row, int64_t index) {
  Block block;
  std::memcpy(&block, row.data() + index * static_cast<int64_t>(sizeof block), sizeof block);
  return block;
}

// Eight weights from magnitudes, a byte each, and sign bits.
void signed_8(uint64_t magnitudes, uint32_t signs, int32_t scale, int32_t* w) {
  for (int i = 0; i < 8; ++i) {
    const auto magnitude = static_cast<int32_t>((magnitudes >> (8 * i)) & 255u) * scale;
    w[i] = (signs >> i & 1u) != 0 ? -magnitude : magnitude;
  }
}

IntegerWeights integers(const Iq2sBlock& block, int b) {
  IntegerWeights out{{}, stored_f16(block.d) * 0.125f};
  for (int g = 4 * b; g < 4 * b + 4; ++g) {
    signed_8(iq2s_grid()[block.entry(g)], block.signs[g], 2 * static_cast<int32_t>(block.scale(g)) + 1,
             out.w + 8 * (g % 4));
  }
  return out;
}
IntegerWeights integers(const Iq3xxsBlock& block, int b) {
  IntegerWeights out{{}, stored_f16(block.d) * 0.25f};
  for (int g = 4 * b; g < 4 * b + 4; ++g) {
    const uint64_t high = iq3xxs_grid()[block.qs[2 * g + 1]];
    signed_8(iq3xxs_grid()[block.qs[2 * g]] | high << 32, block.signs(g), 2 * static_cast<int32_t>(block.scale(b)) + 1,
             out.w + 8 * (g % 4));
  }
  return out;
}
IntegerWeights integers(const Iq3sBlock& block, int b) {
  IntegerWeights out{{}, stored_f16(block.d)};
  for (int g = 4 * b; g < 4 * b + 4; ++g) {
    const uint64_t high = iq3s_grid()[block.entry(2 * g + 1)];
    signed_8(iq3s_grid()[block.entry(2 * g)] | high << 32, block.signs[g], 2 * static_cast<int32_t>(block.scale(b)) + 1,
             out.w + 8 * (g % 4));
  }
  return out;
}
void steps_32(const uint8_t* qs, int32_t scale, int32_t* w) {
  for (int i = 0; i < 16; ++i) {
    w[i] = kIq4Steps[nibble(qs[i], 0)] * scale;
    w[16 + i] = kIq4Steps[nibble(qs[i], 1)] * scale;
  }
}
IntegerWeights integers(const Iq4xsBlock& block, int b) {
  IntegerWeights out{{}, stored_f16(block.d)};
  steps_32(block.qs[b], block.scale(b), out.w);
  return out;
}
IntegerWeights integers(const Iq4nlBlock& block, int) {
  IntegerWeights out{{}, stored_f16(block.d)};
  steps_32(block.qs, 1, out.w);
  return out;
}
IntegerWeights integers(const Q2_0Block& block, int b) {
  IntegerWeights out{{}, stored_f16(block.d)};
  for (int i = 0; i < 32; ++i) out.w[i] = static_cast<int32_t>((block.qs[8 * b + i / 4] >> (2 * (i & 3))) & 3) - 1;
  return out;
}

template <typename Block>
IntegerWeights integers_of(std::span<const std::byte> row, int64_t b) {
  constexpr int64_t kPerBlock = Block::kElements / 32;
  return integers(block_at<Block>(row, b / kPerBlock), static_cast<int>(b % kPerBlock));
}

bool int8_product(const BlockMatrix& matrix, std::span<const float> x, std::span<float> y) {
  std::vector<int8_t> q(x.size());
  std::vector<float> s(x.size() / kInt8Block);
  const bool finite = quantise_int8(x, q, s);
  const size_t row_bytes = matrix.data.size() / y.size();
  for (size_t r = 0; r < y.size(); ++r) {
    y[r] = int8_row_product(matrix.type, matrix.data.subspan(r * row_bytes, row_bytes), q, s);
  }
  return finite;
}

}  // namespace

const BlockUnit* find_block_unit(GgmlType type) {
  const auto* found = std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& unit) { return unit.type == type; });
  return found == kUnits.end() ? nullptr : found;
}

int64_t block_unit_bytes(const BlockUnit& unit, int64_t rows, int64_t inputs) {
  if (rows <= 0 || inputs <= 0 || rows % kBlockUnitRows != 0 || inputs % unit.inputs != 0) {
    base::bad_input(std::string(ggml_type(unit.type).name),
                    "a matrix [{}, {}] is not whole units of {} rows x {} inputs", rows, inputs, kBlockUnitRows,
                    unit.inputs);
  }
  return rows * (inputs / unit.inputs) * unit.row_bytes();
}

void pack_block_units(const BlockUnit& unit, std::span<const std::byte> rows_of_blocks, int64_t rows, int64_t inputs,
                      std::span<std::byte> units) {
  require_sizes(unit, rows, inputs, rows_of_blocks.size(), units.size());
  for_shares(unit, rows, inputs, [&](int64_t in_units, int64_t lane, int64_t in_rows) {
    RowWords row;
    load_file_row(unit, rows_of_blocks.data() + in_rows, row);
    store_unit_row(unit, row, lane, units.data() + in_units);
  });
}

void unpack_block_units(const BlockUnit& unit, std::span<const std::byte> units, int64_t rows, int64_t inputs,
                        std::span<std::byte> rows_of_blocks) {
  require_sizes(unit, rows, inputs, units.size(), rows_of_blocks.size());
  for_shares(unit, rows, inputs, [&](int64_t in_units, int64_t lane, int64_t in_rows) {
    RowWords row;
    load_unit_row(unit, units.data() + in_units, lane, row);
    store_file_row(unit, row, rows_of_blocks.data() + in_rows);
  });
}

void decode_block_row(const BlockUnit& unit, const std::byte* tile, int64_t row, std::span<float> out) {
  std::array<std::byte, 160> bytes;  // of the row in one unit
  const GgmlTraits& traits = ggml_type(unit.type);
  for (int64_t at = 0; at < static_cast<int64_t>(out.size()); tile += unit.bytes) {
    RowWords words;
    load_unit_row(unit, tile, row, words);
    store_file_row(unit, words, bytes.data());
    for (int64_t byte = 0; byte < unit.row_bytes(); byte += traits.block_bytes, at += traits.block_elements) {
      traits.decode(bytes.data() + byte, out.data() + at);
    }
  }
}

IntegerWeights integer_weights(GgmlType type, std::span<const std::byte> row, int64_t b) {
  switch (type) {
    case GgmlType::kIq2s:
      return integers_of<Iq2sBlock>(row, b);
    case GgmlType::kIq3xxs:
      return integers_of<Iq3xxsBlock>(row, b);
    case GgmlType::kIq3s:
      return integers_of<Iq3sBlock>(row, b);
    case GgmlType::kIq4xs:
      return integers_of<Iq4xsBlock>(row, b);
    case GgmlType::kIq4nl:
      return integers_of<Iq4nlBlock>(row, b);
    case GgmlType::kQ2_0:
      return integers_of<Q2_0Block>(row, b);
    default:
      base::internal_error("experts", "{} is no format of experts", ggml_type(type).name);
  }
}

float int8_row_product(GgmlType type, std::span<const std::byte> row, std::span<const int8_t> q,
                       std::span<const float> s) {
  float y = 0;
  for (size_t b = 0; b < s.size(); ++b) {
    const IntegerWeights weights = integer_weights(type, row, static_cast<int64_t>(b));
    int32_t sum = 0;
    for (size_t i = 0; i < 32; ++i) sum += weights.w[i] * q[32 * b + i];
    y = std::fmaf(static_cast<float>(sum), weights.factor * s[b], y);
  }
  return y;
}

bool int8_expert(const BlockMatrix& gate, const BlockMatrix& up, const BlockMatrix& down, std::span<const float> x,
                 std::span<float> y) {
  return swiglu_expert(gate, up, down, x, y, int8_product);
}

}  // namespace tandem::numeric
