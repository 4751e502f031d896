#include "numeric/iquant_codes.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <vector>

#include "numeric/iq2_s.h"
#include "numeric/iq3_s.h"

namespace tandem::numeric {
namespace {

template <size_t N>
bool is_permutation_of_all(std::array<uint16_t, N> entries) {
  std::ranges::sort(entries);
  std::array<uint16_t, N> all;
  std::iota(all.begin(), all.end(), uint16_t{0});
  return entries == all;
}

TEST(IquantCodes, NumberEveryEntryOnce) {
  EXPECT_TRUE(is_permutation_of_all(iq2s_entries()));
  EXPECT_TRUE(is_permutation_of_all(iq3s_entries()));
}

TEST(IquantCodes, OfIq2sShareABitOfEachDigit) {
  for (size_t shared = 0; shared < 64; ++shared) {
    for (size_t i = 0; i < 8; ++i) {
      int with[44] = {};
      for (size_t own = 0; own < 16; ++own) {
        ++with[iq2s_grid()[iq2s_entries()[64 * own + shared]] >> (8 * i) & 255];
      }
      EXPECT_TRUE(with[25] == 0 || with[43] == 0) << shared << " " << i;
    }
  }
}

TEST(IquantCodes, OfIq3sShareTheSetOfEachMagnitude) {
  for (size_t code = 0; code < 256; ++code) {
    for (size_t i = 0; i < 4; ++i) {
      const auto in_set = [&](size_t c) {
        return kIq3sSets[i] >> ((iq3s_grid()[iq3s_entries()[c]] >> (8 * i) & 255) / 2) & 1;
      };
      EXPECT_EQ(in_set(code), in_set(code + 256)) << code << " " << i;
    }
  }
  for (const uint8_t set : kIq3sSets) EXPECT_EQ(std::popcount(set), 4);
}

// The words of a block, which are what follows d.
template <typename Block>
class UnitWords : public testing::Test {
 protected:
  void SetUp() override {
    RecordProperty("seed", std::to_string(seed_));
    std::mt19937_64 random(seed_);
    std::vector<uint8_t> bytes(sizeof block_);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    std::memcpy(&block_, bytes.data(), sizeof block_);
    file_.assign(bytes.begin() + sizeof block_.d, bytes.end());
    unit_ = file_;
  }
  uint32_t bit(int byte, int at) const { return unit_[static_cast<size_t>(byte)] >> at & 1U; }
  uint64_t seed_ = std::random_device{}();
  Block block_;
  std::vector<uint8_t> file_;
  std::vector<uint8_t> unit_;
};
using Iq2sWords = UnitWords<Iq2sBlock>;
using Iq3sWords = UnitWords<Iq3sBlock>;

TEST_F(Iq2sWords, LieAsTheHeaderSays) {
  to_unit_words(GgmlType::kIq2s, unit_);
  for (int b = 0; b < 8; ++b) {
    for (int j = 0; j < 4; ++j) {
      const int g = 4 * b + j;
      const size_t low = unit_[static_cast<size_t>(g)];
      const int upper = 4 * (16 + b / 4) + j;
      const size_t code = low | bit(upper, 2 * (b % 4)) << 8 | bit(upper, 2 * (b % 4) + 1) << 9;
      EXPECT_EQ(iq2s_entries()[code], block_.entry(g)) << "seed " << seed_;
      for (int i = 0; i < 8; ++i) {
        const int byte = 4 * (8 + b) + (j < 2 ? 2 * (i / 4) + j : 2 * (1 - i / 4) + j - 2);
        const int at = i % 4 % 2 + (i % 4 < 2 ? 0 : 4) + (j < 2 ? 2 : 0);
        EXPECT_EQ(bit(byte, at), block_.signs[g] >> i & 1U) << "seed " << seed_;
      }
    }
  }
  EXPECT_TRUE(std::equal(unit_.begin() + 72, unit_.end(), file_.begin() + 72));
  from_unit_words(GgmlType::kIq2s, unit_);
  EXPECT_EQ(unit_, file_) << "seed " << seed_;
}

TEST_F(Iq3sWords, LieAsTheHeaderSays) {
  to_unit_words(GgmlType::kIq3s, unit_);
  constexpr int kSignBits[4] = {3, 1, 7, 5};
  for (int b = 0; b < 8; ++b) {
    for (int h = 0; h < 2; ++h) {
      for (int j = 0; j < 4; ++j) {
        const int q = 8 * b + 4 * h + j;
        const size_t low = unit_[static_cast<size_t>(q)];
        const size_t code = low | bit(4 * (16 + b / 4) + j, 2 * (b % 4) + h) << 8;
        EXPECT_EQ(iq3s_entries()[code], block_.entry(q)) << "seed " << seed_;
        for (int i = 0; i < 4; ++i) {
          EXPECT_EQ(bit(4 * (18 + b) + j, kSignBits[i] - h), block_.signs[q / 2] >> (q % 2 * 4 + i) & 1U)
              << "seed " << seed_;
        }
      }
    }
  }
  EXPECT_TRUE(std::equal(unit_.begin() + 104, unit_.end(), file_.begin() + 104));
  from_unit_words(GgmlType::kIq3s, unit_);
  EXPECT_EQ(unit_, file_) << "seed " << seed_;
}

TEST(IquantCodes, LeaveOtherFormatsAlone) {
  std::vector<uint8_t> words(96);
  std::iota(words.begin(), words.end(), uint8_t{0});
  const auto before = words;
  to_unit_words(GgmlType::kIq3xxs, words);
  EXPECT_EQ(words, before);
  from_unit_words(GgmlType::kIq3xxs, words);
  EXPECT_EQ(words, before);
}

}  // namespace
}  // namespace tandem::numeric
