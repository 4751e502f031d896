#include "numeric/iquant_grids.h"

#include <array>
#include <gtest/gtest.h>
#include <span>
#include <string>

#include "base/hash.h"
#include "numeric/iq4_nl.h"

namespace tandem::numeric {
namespace {

template <typename Entry, size_t kCount>
std::string table_sum(const std::array<Entry, kCount>& table) {
  base::Sha256 hash;
  hash.update(std::as_bytes(std::span(table)));
  return hash.hex();
}

// The sums are of the tables in ggml-common.h, little-endian.
TEST(IquantGrids, AreThoseOfGgml) {
  EXPECT_EQ(table_sum(iq2xs_grid()), "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de");
  EXPECT_EQ(table_sum(iq2s_grid()), "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88");
  EXPECT_EQ(table_sum(iq3xxs_grid()), "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d");
  EXPECT_EQ(table_sum(iq3s_grid()), "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f");
  EXPECT_EQ(table_sum(kIq4Steps), "61aa47540aa024b5d6ddaa839b84ffe59f3d5a349af5c6c7ffcb5e0474b46163");
}

TEST(IquantGrids, SignsAreThoseOfGgml) {
  std::array<uint8_t, 128> signs{};
  for (uint32_t seven = 0; seven < 128; ++seven) signs[seven] = static_cast<uint8_t>(iquant_signs(seven));
  EXPECT_EQ(table_sum(signs), "a76742a603f8beca5212ecce0f1f02f11a4887fd2f7c8b15aca0ea3eb3380c31");
}

TEST(IquantGrids, StandOnCacheLines) {
  for (const void* table : {static_cast<const void*>(&iq2xs_grid()), static_cast<const void*>(&iq2s_grid()),
                            static_cast<const void*>(&iq3xxs_grid()), static_cast<const void*>(&iq3s_grid())}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(table) % 64, 0u);
  }
}

}  // namespace
}  // namespace tandem::numeric
