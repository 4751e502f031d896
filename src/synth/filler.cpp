#include "synth/filler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/f16.h"
#include "synth/random.h"

namespace tandem::synth {

namespace {

constexpr size_t kDraws = 65536;
constexpr double kE4M3Largest = 448;
// Of 16 normal values the largest is on average 1.77 spreads from 0; it becomes E2M1's 6.
constexpr double kBlockOf16 = 1.77;

double quantile(size_t draw) {
  return normal_quantile((static_cast<double>(draw) + 0.5) / static_cast<double>(kDraws));
}

uint8_t e4m3(double value) {
  return numeric::e4m3_from_float(static_cast<float>(std::clamp(value, -kE4M3Largest, kE4M3Largest)));
}

uint8_t packed_code(double normal, int bits) {
  // The rounding that loses least of a normal variable puts a 3-bit code's steps about 0.6 spreads apart.
  const double half = std::exp2(bits - 1);
  const double step = 2.4 / half;
  return static_cast<uint8_t>(std::clamp(std::nearbyint(normal / step), -half, half - 1) + half);
}

}  // namespace

double normal_quantile(double p) {
  const double tail = std::min(p, 1 - p);
  const double t = std::sqrt(-2 * std::log(tail));
  const double above = 2.515517 + t * (0.802853 + t * 0.010328);
  const double below = 1 + t * (1.432788 + t * (0.189269 + t * 0.001308));
  const double value = t - above / below;
  return p < 0.5 ? -value : value;
}

Filler::Filler() {
  std::vector<uint8_t> code_of_256(256);
  for (size_t i = 0; i < 256; ++i) {
    const double normal = normal_quantile((static_cast<double>(i) + 0.5) / 256);
    code_of_256[i] = numeric::e2m1_from_float(static_cast<float>(normal / kBlockOf16 * 6));
  }
  for (size_t draw = 0; draw < kDraws; ++draw) {
    const double normal = quantile(draw);
    normal_.push_back(static_cast<float>(normal));
    nvfp4_codes_.push_back(static_cast<uint8_t>(code_of_256[draw & 255] | code_of_256[draw >> 8] << 4));
    // The largest of a block over the largest of the tensor, about 4.5 spreads, as a part of 448.
    nvfp4_scales_.push_back(e4m3(kE4M3Largest * kBlockOf16 / 4.5 * std::exp(0.22 * normal)));
    e4m3_codes_.push_back(e4m3(kE4M3Largest / 4 * normal));
  }
}

uint16_t Filler::drawn(uint64_t key, uint64_t index) {
  return static_cast<uint16_t>(random_at(key, index / 4) >> (16 * (index % 4)));
}

void Filler::bytes(const std::vector<uint8_t>& table, uint64_t key, uint64_t first, std::span<std::byte> out) const {
  uint64_t i = 0;
  const auto one = [&] {
    out[i] = static_cast<std::byte>(table[drawn(key, first + i)]);
    ++i;
  };
  while (i < out.size() && (first + i) % 4 != 0) one();
  for (; i + 4 <= out.size(); i += 4) {
    const uint64_t word = random_at(key, (first + i) / 4);
    for (size_t k = 0; k < 4; ++k) out[i + k] = static_cast<std::byte>(table[(word >> (16 * k)) & 0xFFFF]);
  }
  while (i < out.size()) one();
}

template <typename Function>
void Filler::floats(const TensorPlan& plan, uint64_t first, std::span<std::byte> out, Function value) const {
  using checkpoint::Dtype;
  if (plan.dtype == Dtype::kF32) {
    for (uint64_t i = 0; i < out.size() / 4; ++i) {
      const float number = value(first + i);
      std::memcpy(out.data() + i * 4, &number, 4);
    }
    return;
  }
  for (uint64_t i = 0; i < out.size() / 2; ++i) {
    const float number = value(first + i);
    const uint16_t bits =
        plan.dtype == Dtype::kBF16 ? numeric::bf16_from_float(number) : numeric::f16_from_float(number);
    std::memcpy(out.data() + i * 2, &bits, 2);
  }
}

void Filler::packed(const TensorPlan& plan, uint64_t key, uint64_t first, std::span<std::byte> out) const {
  const auto words = static_cast<uint64_t>(plan.row_elements);
  const auto bits = static_cast<uint64_t>(plan.bits);
  const auto codes = static_cast<uint64_t>(plan.row_codes);
  const uint64_t per_word = 32 / bits;
  const auto code = [&](uint64_t row, uint64_t k) -> uint64_t {
    return k < codes ? packed_code(normal(key, row * codes + k), plan.bits) : 0;
  };
  for (uint64_t i = 0; i < out.size() / 4; ++i) {
    const uint64_t row = (first + i) / words;
    const uint64_t word = (first + i) % words;
    uint64_t value = 0;
    if (plan.dense_bits) {
      // Codes that begin in the word, and the one that reaches into it from before.
      for (uint64_t k = word * 32 / bits; k * bits < (word + 1) * 32; ++k) {
        const uint64_t at = k * bits;
        value |= at >= word * 32 ? code(row, k) << (at - word * 32) : code(row, k) >> (word * 32 - at);
      }
    } else {
      for (uint64_t k = 0; k < per_word; ++k) value |= code(row, word * per_word + k) << (k * bits);
    }
    const auto low = static_cast<uint32_t>(value);
    std::memcpy(out.data() + i * 4, &low, 4);
  }
}

void Filler::make(const TensorPlan& plan, uint64_t key, uint64_t offset, std::span<std::byte> out) const {
  const auto size = static_cast<uint64_t>(checkpoint::dtype_bits(plan.dtype)) / 8;
  if (offset % size != 0 || out.size() % size != 0) {
    base::internal_error("synth", "{} bytes from {} are no whole elements of {}", out.size(), offset, size);
  }
  const uint64_t first = offset / size;
  const auto mean = static_cast<float>(plan.mean);
  const auto spread = static_cast<float>(plan.spread);
  const auto row = static_cast<uint64_t>(plan.row_elements);
  switch (plan.draw) {
    case Draw::kNormal:
      return floats(plan, first, out, [&](uint64_t i) { return mean + spread * normal(key, i); });
    case Draw::kRows:
      return floats(plan, first, out,
                    [&](uint64_t i) { return spread * (*plan.row_factors)[i / row] * normal(key, i); });
    case Draw::kTopics: {
      const auto common = static_cast<float>(std::sqrt(plan.share));
      const auto own = static_cast<float>(std::sqrt(1 - plan.share));
      const auto topics = static_cast<uint64_t>(plan.topics);
      return floats(plan, first, out, [&](uint64_t i) {
        const uint64_t topic = i / row % topics;
        return spread * (common * normal(plan.topic_key, topic * row + i % row) + own * normal(key, i));
      });
    }
    case Draw::kUniform:
      return floats(plan, first, out,
                    [&](uint64_t i) { return static_cast<float>(plan.mean + plan.spread * uniform_at(key, i)); });
    case Draw::kNvfp4Codes:
      return bytes(nvfp4_codes_, key, first, out);
    case Draw::kNvfp4Scales:
      return bytes(nvfp4_scales_, key, first, out);
    case Draw::kE4M3Codes:
      return bytes(e4m3_codes_, key, first, out);
    case Draw::kPackedCodes:
      return packed(plan, key, first, out);
    case Draw::kIntegers:
      std::memcpy(out.data(), reinterpret_cast<const std::byte*>(plan.integers.data()) + offset, out.size());
      return;
  }
}

}  // namespace tandem::synth
