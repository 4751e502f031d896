// Integers of 3 and 4 bits of 128 inputs in the order in which lanes of a card's tensor cores want them, for products
// of few columns: a pair's bits are at their places in BF16 behind one mask, most of them after one shift
// (ops/cuda/dense_lanes.cuh).
//
// A code v = code - 2^(bits - 1) is kept as sign and magnitude of 2 v + 1, which is odd: (-1)^sign (2 k + 1). BF16
// whose exponent is 0 or 1 are the integers below 256 times 2^-133; so a pair of codes needs its signs at bits 15 and
// 31, its k at bits `place` and 16 + `place`, and ones below these.
//
// A unit has 4 * bits words, and a lane l of four has inputs 4 l to 4 l + 3 of each block of 16, in 16 pairs: pair p is
// inputs 4 l + p % 2 * 2 and the next of block p / 2, the first in the lower half of a word. Its word is rotated left
// by `turn` for that.
//   4 bits  words 4 l to 4 l + 3 of the unit, four pairs each
//   3 bits  words 2 l, 2 l + 1 and 8 + l, five pairs each; the last pair's signs are at bits 8 and 24 of the first, the
//           upper bits of its k there in the second, the lower ones in the third
#pragma once

#include <cstdint>

namespace tandem::numeric {

struct IntTurn {
  int turn, place;
};
// Of pair `pair` of a lane, but the last of three bits.
template <int kBits>
constexpr IntTurn int_turn(int pair) {
  if constexpr (kBits == 4) {
    return {pair % 4 * 4, 4};
  } else {
    switch (pair % 5) {
      case 0:
        return {0, 6};
      case 1:
        return {1, 5};
      case 2:
        return {4, 6};
      case 3:
        return {5, 5};
      default:
        return {6, 2};
    }
  }
}
// Where k of a pair is in BF16.
template <int kBits>
constexpr int int_place(int pair) {
  return kBits == 3 && pair == 15 ? 6 : int_turn<kBits>(pair).place;
}

template <int kBits>
inline constexpr int kIntLaneWords = 4 * kBits;  // of a unit

// The word of a lane, of its kBits.
template <int kBits>
constexpr int int_lane_word(int lane, int word) {
  if constexpr (kBits == 4) {
    return 4 * lane + word;
  } else {
    return word < 2 ? 2 * lane + word : 8 + lane;
  }
}

// Where bit `bit` of the sign and k of an input lies, 0 being the lowest of k and kBits - 1 the sign.
struct IntLaneBit {
  int word, bit;
};
template <int kBits>
constexpr IntLaneBit int_lane_bit(int input, int bit) {
  constexpr int kPairs = kBits == 4 ? 4 : 5;  // of a word
  const int lane = input % 16 / 4;
  const int pair = input / 16 * 2 + input % 4 / 2;
  const int half = input % 2 * 16;
  if (kBits == 3 && pair == 15) return {int_lane_word<kBits>(lane, 2 - bit), 8 + half};
  const IntTurn turn = int_turn<kBits>(pair);
  const int wanted = (bit == kBits - 1 ? 15 : turn.place + bit) + half;
  return {int_lane_word<kBits>(lane, pair / kPairs), (wanted - turn.turn + 32) % 32};
}

template <int kBits>
constexpr uint32_t int_lane_code(const uint32_t* unit, int input) {
  constexpr uint32_t kSign = 1U << (kBits - 1);
  uint32_t bits = 0;
  for (int i = 0; i < kBits; ++i) {
    const IntLaneBit at = int_lane_bit<kBits>(input, i);
    bits |= (unit[at.word] >> at.bit & 1) << i;
  }
  return (bits & kSign) != 0 ? ~bits & (kSign - 1) : bits | kSign;
}
// `unit` is zeros where no code was put.
template <int kBits>
constexpr void put_int_lane_code(uint32_t* unit, int input, uint32_t code) {
  constexpr uint32_t kSign = 1U << (kBits - 1);
  const uint32_t bits = (code & kSign) != 0 ? code & (kSign - 1) : (~code & (kSign - 1)) | kSign;
  for (int i = 0; i < kBits; ++i) {
    const IntLaneBit at = int_lane_bit<kBits>(input, i);
    unit[at.word] |= (bits >> i & 1) << at.bit;
  }
}

// A code of a unit as it is stored (numeric/int_group.h), and its place there.
template <int kBits>
constexpr uint32_t int_stored_code(const uint32_t* unit, int input) {
  const int lane = input % 16;
  const int shift = input / 16 * kBits;
  if constexpr (kBits == 4) {
    return unit[lane] >> shift & 15;
  } else {
    const uint32_t low = unit[lane / 2] >> lane % 2 * 16 & 0xffff;
    const uint32_t high = unit[8 + lane / 4] >> lane % 4 * 8 & 0xff;
    return (low | high << 16) >> shift & 7;
  }
}
template <int kBits>
constexpr void put_int_stored_code(uint32_t* unit, int input, uint32_t code) {
  const int lane = input % 16;
  const int shift = input / 16 * kBits;
  if constexpr (kBits == 4) {
    unit[lane] |= code << shift;
  } else {
    unit[lane / 2] |= (code << shift & 0xffff) << lane % 2 * 16;
    unit[8 + lane / 4] |= (code << shift >> 16) << lane % 4 * 8;
  }
}

// A unit as it is stored to lanes' order, and back.
template <int kBits>
constexpr void int_to_lane_order(const uint32_t* stored, uint32_t* by_lane) {
  for (int i = 0; i < kIntLaneWords<kBits>; ++i) by_lane[i] = 0;
  for (int i = 0; i < 128; ++i) put_int_lane_code<kBits>(by_lane, i, int_stored_code<kBits>(stored, i));
}
template <int kBits>
constexpr void int_from_lane_order(const uint32_t* by_lane, uint32_t* stored) {
  for (int i = 0; i < kIntLaneWords<kBits>; ++i) stored[i] = 0;
  for (int i = 0; i < 128; ++i) put_int_stored_code<kBits>(stored, i, int_lane_code<kBits>(by_lane, i));
}

}  // namespace tandem::numeric
