#include "numeric/int_lanes.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <span>

#include "numeric/bf16.h"
#include "numeric/int_group.h"

namespace tandem::numeric {
namespace {

template <int kBits>
void check_order() {
  std::set<int> seen;
  for (int input = 0; input < 128; ++input) {
    for (int i = 0; i < kBits; ++i) {
      const IntLaneBit at = int_lane_bit<kBits>(input, i);
      ASSERT_TRUE(at.bit >= 0 && at.bit < 32 && at.word >= 0 && at.word < kIntLaneWords<kBits>) << input;
      EXPECT_TRUE(seen.insert(32 * at.word + at.bit).second) << "input " << input << ", bit " << i;
    }
  }
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::array<uint8_t, 128> codes = {};
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % (1U << kBits));
    std::array<uint32_t, kIntLaneWords<kBits>> stored = {};
    int_store_row(codes, kBits, std::as_writable_bytes(std::span(stored)));
    std::array<uint32_t, kIntLaneWords<kBits>> by_lane = {};
    std::array<uint32_t, kIntLaneWords<kBits>> back = {};
    int_to_lane_order<kBits>(stored.data(), by_lane.data());
    int_from_lane_order<kBits>(by_lane.data(), back.data());
    EXPECT_EQ(back, stored);
    for (int input = 0; input < 128; ++input) {
      ASSERT_EQ(int_lane_code<kBits>(by_lane.data(), input), codes[static_cast<size_t>(input)]) << input;
    }
    // What the tensor cores get of a pair: (2 v + 1) 2^(place - 134).
    for (int input = 0; input < 128; input += 2) {
      const int pair = input / 16 * 2 + input % 4 / 2;
      if (kBits == 3 && pair == 15) continue;
      const IntTurn turn = int_turn<kBits>(pair);
      const uint32_t word = by_lane[static_cast<size_t>(int_lane_bit<kBits>(input, 0).word)];
      const uint32_t k = (1U << (kBits - 1)) - 1;
      const uint32_t mask = 0x8000U | k << turn.place;
      const uint32_t both = (std::rotl(word, turn.turn) & (mask << 16 | mask)) | 0x10001U << (turn.place - 1);
      for (size_t i = 0; i < 2; ++i) {
        const float value = bf16_to_float(static_cast<uint16_t>(both >> 16 * i)) * 0x1p100F;
        const float v = int_to_float(codes[static_cast<size_t>(input) + i], kBits);
        ASSERT_EQ(value, std::ldexp(2 * v + 1, turn.place - 34)) << input;
      }
    }
  }
}

TEST(IntLanes, FourBits) {
  check_order<4>();
}
TEST(IntLanes, ThreeBits) {
  check_order<3>();
}

}  // namespace
}  // namespace tandem::numeric
