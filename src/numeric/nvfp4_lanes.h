// E2M1 codes of 128 inputs in the order in which lanes of a card's tensor cores want them, for products of few columns:
// most of a word's bits then are at their places in BF16 behind one mask (ops/cuda/dense_mma.cuh).
//
// A unit has 16 words, as it has in the order of the inputs. Words 4 l to 4 l + 3 are those of lane l of four; word j
// of a lane has inputs 4 l to 4 l + 3 of block 2 j, then of block 2 j + 1: four pairs. Pairs 0, 1 and 2 have their
// first code in the lower half of the word and their second in the upper, sign, exponent and mantissa 3 bits further
// down in each pair than in the one before; pair 3 has the bits that are left, the first code in the upper half.
#pragma once

#include <cstdint>

namespace tandem::numeric {

inline constexpr int kLaneUnitInputs = 128;
inline constexpr int kLaneUnitWords = 16;

// Where the code of an input lies: its word, and the places of its four bits, from the mantissa up to the sign.
struct LanePlace {
  int word;
  int bits[4];
};

constexpr LanePlace lane_place(int input) {
  const int block = input / 16;
  const int lane = input % 16 / 4;
  const int pair = block % 2 * 2 + input % 4 / 2;
  const int word = 4 * lane + block / 2;
  if (pair < 3) {
    const int base = 16 * (input % 2) - 3 * pair;
    return {word, {base + 6, base + 7, base + 8, base + 15}};
  }
  const int base = 16 * (1 - input % 2);
  return {word, {base + 13, base + 14, base + 10, base + 11}};
}

constexpr uint32_t lane_code(const uint32_t* unit, int input) {
  const LanePlace place = lane_place(input);
  uint32_t code = 0;
  for (int i = 0; i < 4; ++i) code |= (unit[place.word] >> place.bits[i] & 1) << i;
  return code;
}

// `unit` is zeros where no code was put.
constexpr void put_lane_code(uint32_t* unit, int input, uint32_t code) {
  const LanePlace place = lane_place(input);
  for (int i = 0; i < 4; ++i) unit[place.word] |= (code >> i & 1) << place.bits[i];
}

// A unit in the order of the inputs, the even input in the low nibble, and back.
constexpr void to_lane_order(const uint32_t* by_input, uint32_t* by_lane) {
  for (int i = 0; i < kLaneUnitWords; ++i) by_lane[i] = 0;
  for (int i = 0; i < kLaneUnitInputs; ++i) put_lane_code(by_lane, i, by_input[i / 8] >> i % 8 * 4 & 15);
}
constexpr void from_lane_order(const uint32_t* by_lane, uint32_t* by_input) {
  for (int i = 0; i < kLaneUnitWords; ++i) by_input[i] = 0;
  for (int i = 0; i < kLaneUnitInputs; ++i) by_input[i / 8] |= lane_code(by_lane, i) << i % 8 * 4;
}

}  // namespace tandem::numeric
