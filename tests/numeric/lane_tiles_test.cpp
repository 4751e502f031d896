#include "numeric/lane_tiles.h"

#include <gtest/gtest.h>
#include <vector>

namespace tandem::numeric {
namespace {

TEST(LaneTiles, EveryUnitHasAPlaceOfItsOwn) {
  constexpr int64_t kRows = 48;
  for (const int64_t units : {1, 5, 40}) {
    std::vector<bool> taken(static_cast<size_t>(kRows * units));
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t unit = 0; unit < units; ++unit) {
        const int64_t place = lane_tile_place(row, unit, units);
        ASSERT_TRUE(place >= 0 && place < kRows * units) << row << ", " << unit;
        ASSERT_FALSE(taken[static_cast<size_t>(place)]) << row << ", " << unit;
        taken[static_cast<size_t>(place)] = true;
      }
    }
  }
}

// What a block of the kernel for few columns reads at once: some units of 16 rows.
TEST(LaneTiles, UnitsOfATileAreOneRun) {
  constexpr int64_t kUnits = 7;
  int64_t expected = lane_tile_place(32, 2, kUnits);
  for (int64_t unit = 2; unit < 5; ++unit) {
    for (int64_t row = 32; row < 48; ++row) EXPECT_EQ(lane_tile_place(row, unit, kUnits), expected++);
  }
}

}  // namespace
}  // namespace tandem::numeric
