#include "numeric/nvfp4_lanes.h"

#include <array>
#include <gtest/gtest.h>
#include <random>
#include <set>

namespace tandem::numeric {
namespace {

TEST(Nvfp4Lanes, EveryBitOfAUnitHasOneCode) {
  std::set<int> seen;
  for (int input = 0; input < kLaneUnitInputs; ++input) {
    const LanePlace place = lane_place(input);
    EXPECT_EQ(place.word / 4, input % 16 / 4) << "of the lane that has these inputs of every block";
    for (const int bit : place.bits) {
      ASSERT_TRUE(bit >= 0 && bit < 32) << input;
      EXPECT_TRUE(seen.insert(32 * place.word + bit).second) << "input " << input << ", bit " << bit;
    }
  }
  EXPECT_EQ(seen.size(), 32U * kLaneUnitWords);
}

TEST(Nvfp4Lanes, ThereAndBackIsTheSame) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::array<uint32_t, kLaneUnitWords> unit = {};
    for (uint32_t& word : unit) word = static_cast<uint32_t>(random());
    std::array<uint32_t, kLaneUnitWords> by_lane = {};
    std::array<uint32_t, kLaneUnitWords> back = {};
    to_lane_order(unit.data(), by_lane.data());
    from_lane_order(by_lane.data(), back.data());
    EXPECT_EQ(back, unit);
    for (int input = 0; input < kLaneUnitInputs; ++input) {
      ASSERT_EQ(lane_code(by_lane.data(), input), unit[static_cast<size_t>(input / 8)] >> input % 8 * 4 & 15) << input;
    }
  }
}

// Pair 1 of a word: two codes behind one mask once the word is shifted by three.
TEST(Nvfp4Lanes, PairsStandWhereBF16HasTheirBits) {
  std::array<uint32_t, kLaneUnitWords> unit = {};
  put_lane_code(unit.data(), 2, 0b1011);
  put_lane_code(unit.data(), 3, 0b0101);
  EXPECT_EQ(unit[0] << 3 & 0x81c081c0, 0x8000U | 0b011U << 6 | 0b101U << 22);
}

}  // namespace
}  // namespace tandem::numeric
