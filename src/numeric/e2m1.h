// E2M1: 1 sign, 2 exponent (bias 1) and 1 mantissa bit; 4 bits a code, no infinity and no NaN, the largest value is 6.
// Decoding is exact, and twice the value is an integer.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace tandem::numeric {

inline constexpr float kE2m1Max = 6.0f;

// Value of each code; code 8 is -0.
inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// C = 2 * value.
inline constexpr std::array<int8_t, 16> kE2m1Doubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr float e2m1_to_float(uint8_t code) {
  return kE2m1Values[code & 15u];
}

// Rounds to nearest, ties to the even code: of the ties 0.25, 0.75, 1.25, 1.75, 2.5, 3.5 and 5, those at 0.75, 1.75
// and 3.5 go up, the others down. Saturates at +-6 (infinities too); keeps the sign of what rounds to zero. NaN has no
// code: it gives +-6, and whoever can meet it reports it first.
constexpr uint8_t e2m1_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float a = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  const uint32_t sign = (bits >> 28) & 8u;
  uint32_t code = 7;
  if (a <= 0.25f) {
    code = 0;
  } else if (a < 0.75f) {
    code = 1;
  } else if (a <= 1.25f) {
    code = 2;
  } else if (a < 1.75f) {
    code = 3;
  } else if (a <= 2.5f) {
    code = 4;
  } else if (a < 3.5f) {
    code = 5;
  } else if (a <= 5.0f) {
    code = 6;
  }
  return static_cast<uint8_t>(sign | code);
}

}  // namespace tandem::numeric
