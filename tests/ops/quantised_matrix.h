// Random matrices in every weight format, with what the scalar definitions (src/numeric) say they are.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "numeric/f16.h"
#include "numeric/fp8_block.h"
#include "numeric/int_group.h"
#include "numeric/nvfp4.h"
#include "ops/weight.h"
#include "tests/ops/random_data.h"

namespace tandem::ops {

struct QuantisedMatrix {
  Weight weight;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<float> decoded;     // [rows, inputs] with the scales of blocks and groups alone
  std::vector<float> row_factor;  // [rows]: what a sum is multiplied by, or divided
  bool divides = false;

  float finish(float sum, int64_t row) const {
    const float factor = row_factor[static_cast<size_t>(row)];
    return divides ? sum / factor : sum * factor;
  }
};

inline constexpr std::array kQuantisedFormats = {
    WeightFormat::kF16,   WeightFormat::kFp8Row, WeightFormat::kFp8Tensor, WeightFormat::kFp8Block,
    WeightFormat::kNvfp4, WeightFormat::kInt3,   WeightFormat::kInt4,      WeightFormat::kInt8};

// Makes matrices. Every code but NaN occurs, scales are of the size of published ones.
class MatrixMaker {
 public:
  explicit MatrixMaker(RandomData& random) : random_(random) {}

  // Scale types and groups are drawn too. NVFP4 needs inputs that are multiples of 16, as do integers.
  QuantisedMatrix make(WeightFormat format, int64_t rows, int64_t inputs) {
    QuantisedMatrix m;
    m.weight.format = format;
    m.weight.rows = rows;
    m.weight.inputs = inputs;
    m.row_factor.assign(static_cast<size_t>(rows), 1.0F);
    m.decoded.resize(static_cast<size_t>(rows * inputs));
    switch (format) {
      case WeightFormat::kNvfp4:
        make_nvfp4(m);
        break;
      case WeightFormat::kInt3:
        make_integers(m, 3);
        break;
      case WeightFormat::kInt4:
        make_integers(m, 4);
        break;
      case WeightFormat::kInt8:
        make_integers(m, 8);
        break;
      case WeightFormat::kF16:
        make_f16(m);
        break;
      default:
        make_fp8(m);
        break;
    }
    m.weight.data = m.data.data();
    m.weight.scales = m.scales.data();
    return m;
  }

 private:
  uint8_t byte() { return static_cast<uint8_t>(random_.engine()()); }

  // Scales of one type in m.scales; their values.
  std::vector<float> draw_scales(QuantisedMatrix& m, int64_t count, bool f16) {
    const int64_t type = random_.between(0, f16 ? 2 : 1);
    m.weight.scale_type = type == 0 ? ScaleType::kBF16 : type == 1 ? ScaleType::kF32 : ScaleType::kF16;
    m.scales.resize(static_cast<size_t>(count) * (type == 1 ? 4 : 2));
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      const float drawn = 1e-3F * (0.1F + std::fabs(random_.normal(1)[0]));
      std::byte* at = m.scales.data() + i * (type == 1 ? 4 : 2);
      if (type == 1) {
        std::memcpy(at, &drawn, 4);
        values.push_back(drawn);
        continue;
      }
      const uint16_t bits = type == 0 ? numeric::bf16_from_float(drawn) : numeric::f16_from_float(drawn);
      std::memcpy(at, &bits, 2);
      values.push_back(type == 0 ? numeric::bf16_to_float(bits) : numeric::f16_to_float(bits));
    }
    return values;
  }

  void make_f16(QuantisedMatrix& m) {
    m.data.resize(m.decoded.size() * 2);
    for (size_t i = 0; i < m.decoded.size(); ++i) {
      const uint16_t bits = numeric::f16_from_float(random_.normal(1)[0]);
      std::memcpy(m.data.data() + 2 * i, &bits, 2);
      m.decoded[i] = numeric::f16_to_float(bits);
    }
  }

  void make_fp8(QuantisedMatrix& m) {
    const int64_t inputs = m.weight.inputs;
    const int64_t across = numeric::fp8_blocks(inputs);
    m.data.resize(m.decoded.size());
    std::vector<float> scales;
    if (m.weight.format == WeightFormat::kFp8Block) {
      scales = draw_scales(m, numeric::fp8_blocks(m.weight.rows) * across, false);
    } else if (m.weight.format == WeightFormat::kFp8Row) {
      m.row_factor = draw_scales(m, m.weight.rows, false);
    } else {
      m.weight.scale = 1e-3F * (0.1F + std::fabs(random_.normal(1)[0]));
      m.row_factor.assign(m.row_factor.size(), m.weight.scale);
    }
    for (size_t i = 0; i < m.decoded.size(); ++i) {
      uint8_t code = byte();
      if (numeric::e4m3_is_nan(code)) code = 0x80;
      m.data[i] = static_cast<std::byte>(code);
      m.decoded[i] = numeric::e4m3_to_float(code);
      const int64_t row = static_cast<int64_t>(i) / inputs;
      const int64_t input = static_cast<int64_t>(i) % inputs;
      if (!scales.empty()) m.decoded[i] *= scales[static_cast<size_t>(row / 128 * across + input / 128)];
    }
  }

  void make_nvfp4(QuantisedMatrix& m) {
    m.data.resize(m.decoded.size() / 2);
    m.scales.resize(m.decoded.size() / 16);
    for (std::byte& codes : m.data) codes = static_cast<std::byte>(byte());
    for (std::byte& scale : m.scales) scale = static_cast<std::byte>(byte() % 0x7f);
    m.divides = random_.between(0, 1) == 1;
    m.weight.divides = m.divides;
    m.weight.scale = (m.divides ? 1e4F : 1e-4F) * (0.5F + std::fabs(random_.normal(1)[0]));
    m.row_factor.assign(m.row_factor.size(), m.weight.scale);
    for (size_t i = 0; i < m.decoded.size(); ++i) {
      const auto codes = std::to_integer<uint8_t>(m.data[i / 2]);
      m.decoded[i] = numeric::e2m1_to_float(i % 2 == 0 ? codes & 15 : codes >> 4) *
                     numeric::e4m3_to_float(std::to_integer<uint8_t>(m.scales[i / 16]));
    }
  }

  void make_integers(QuantisedMatrix& m, int bits) {
    const int64_t inputs = m.weight.inputs;
    std::vector<int64_t> groups = {inputs};
    for (const int64_t group : {16, 32, 64, 128, 256}) {
      if (inputs % group == 0) groups.push_back(group);
    }
    m.weight.group = groups[static_cast<size_t>(random_.between(0, static_cast<int64_t>(groups.size()) - 1))];
    const auto scales = draw_scales(m, m.weight.rows * (inputs / m.weight.group), true);
    const auto row_bytes = static_cast<size_t>(numeric::int_row_bytes(inputs, bits));
    const auto row_groups = static_cast<size_t>(inputs / m.weight.group);
    const auto width = static_cast<size_t>(inputs);
    m.data.resize(static_cast<size_t>(m.weight.rows) * row_bytes);
    std::vector<uint8_t> codes(width);
    for (size_t row = 0; row < m.row_factor.size(); ++row) {
      for (uint8_t& code : codes) code = static_cast<uint8_t>(byte() & ((1 << bits) - 1));
      numeric::int_store_row(codes, bits, std::span(m.data).subspan(row * row_bytes, row_bytes));
      numeric::int_decode_row(codes, bits, std::span(scales).subspan(row * row_groups, row_groups), m.weight.group,
                              std::span(m.decoded).subspan(row * width, width));
    }
  }

  RandomData& random_;
};

}  // namespace tandem::ops
