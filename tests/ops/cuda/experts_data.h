// Random experts of any formats, for the test and the bench of the card's experts.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "numeric/block_units.h"
#include "numeric/expert_record.h"
#include "numeric/fp8_block.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// Bytes of a record at random, with scales that formats allow: of ordinary sizes, or of all.
class RandomRecords {
 public:
  RandomRecords(std::mt19937& engine, bool extreme) : engine_(engine), extreme_(extreme) {}

  std::vector<std::byte> make(const numeric::ExpertRecord& record, int64_t experts, int64_t inner, int64_t hidden) {
    std::vector<std::byte> out(static_cast<size_t>(experts * record.bytes));
    auto* words = reinterpret_cast<uint32_t*>(out.data());
    for (size_t i = 0; i < out.size() / 4; ++i) words[i] = engine_();
    for (int64_t e = 0; e < experts; ++e) {
      for (const auto& matrix : record.matrices) fix(matrix, out.data() + e * record.bytes, inner, hidden);
    }
    return out;
  }

 private:
  uint32_t between(uint32_t low, uint32_t high) { return low + engine_() % (high - low + 1); }
  uint16_t half() {
    const uint32_t magnitude = extreme_ ? between(0, 0x7BFF) : between(0x1400, 0x2400);
    return static_cast<uint16_t>(magnitude | (engine_() & 1) << 15);
  }

  void fix(const numeric::ExpertRecord::Matrix& matrix, std::byte* record, int64_t inner, int64_t hidden) {
    std::byte* data = record + matrix.offset;
    switch (matrix.format) {
      case numeric::ExpertFormat::kBF16:
        for (int64_t i = 0; i < matrix.bytes / 2; ++i) {
          const auto bits = static_cast<uint16_t>(between(0x3A00, 0x3D80) | (engine_() & 1) << 15);
          std::memcpy(data + 2 * i, &bits, 2);
        }
        return;
      case numeric::ExpertFormat::kNvfp4:
        for (int64_t unit = 0; unit < matrix.bytes; unit += 576) {
          for (int64_t i = 512; i < 576; ++i) {
            data[unit + i] = static_cast<std::byte>(extreme_ ? between(0, 0x7E) : between(0x20, 0x48));
          }
        }
        return;
      case numeric::ExpertFormat::kFp8Block:
        for (int64_t i = 0; i < matrix.bytes; ++i) {
          if ((data[i] & std::byte{0x7F}) == std::byte{0x7F}) data[i] ^= std::byte{1};
        }
        for (int64_t i = 0; i < numeric::fp8_blocks(inner) * numeric::fp8_blocks(hidden); ++i) {
          const auto bits = static_cast<uint16_t>(extreme_ ? between(0, 0x4800) : between(0x3600, 0x3900));
          std::memcpy(record + matrix.scales_offset + 2 * i, &bits, 2);
        }
        return;
      default:
        fix_blocks(block_unit_of(matrix.format), matrix.bytes, data);
    }
  }
  void fix_blocks(const numeric::BlockUnit& unit, int64_t bytes, std::byte* data) {
    for (int64_t at = 0; at < bytes; at += unit.bytes) {
      for (int64_t i = 0; i < 16 * std::max<int64_t>(1, unit.scales); ++i) {
        const uint16_t bits = half();
        std::memcpy(data + at + (unit.scales == 0 ? 4 * i : 64 * unit.words + 2 * i), &bits, 2);
      }
    }
  }

  std::mt19937& engine_;
  bool extreme_;
};

// weight_scale_2 and input_scale of gate, up and down; the latter only of six.
inline std::vector<float> random_scalars(std::mt19937& engine, int64_t experts, int64_t each) {
  std::vector<float> out;
  const auto power = [&](int low, int high) {
    return std::exp2(std::uniform_real_distribution<float>(static_cast<float>(low), static_cast<float>(high))(engine));
  };
  for (int64_t e = 0; e < experts; ++e) {
    for (int m = 0; m < 3; ++m) out.push_back(power(-12, -10));
    if (each == 3) continue;
    for (int m = 0; m < 3; ++m) out.push_back(power(-11, -8));
    if (e % 2 == 0) out[out.size() - 2] = out[out.size() - 3];  // gate and up share theirs
  }
  return out;
}

}  // namespace tandem::ops::cuda
