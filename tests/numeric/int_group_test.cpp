#include "numeric/int_group.h"

#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "base/error.h"

namespace tandem::numeric {
namespace {

constexpr int kBits[] = {3, 4, 8};
constexpr IntPacking kPackings[] = {IntPacking::kWords, IntPacking::kStream};

class IntGroup : public testing::Test {
 protected:
  std::vector<uint8_t> random_codes(size_t count, int bits) {
    std::vector<uint8_t> codes(count);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random_() % (1u << bits));
    return codes;
  }
  size_t between(size_t low, size_t high) { return low + random_() % (high - low + 1); }

  unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, seed_};
};

TEST(IntPackings, HaveTheColumnsOfThePublications) {
  const auto columns = [](int64_t inputs, IntPacking packing) { return int_packed_words(inputs, 3, packing); };
  EXPECT_EQ(columns(5120, IntPacking::kWords), 512);
  EXPECT_EQ(columns(17408, IntPacking::kWords), 1741);
  EXPECT_EQ(columns(6144, IntPacking::kWords), 615);
  EXPECT_EQ(columns(5120, IntPacking::kStream), 480);
  EXPECT_EQ(columns(17408, IntPacking::kStream), 1632);
  EXPECT_EQ(columns(6144, IntPacking::kStream), 576);
  EXPECT_EQ(int_packed_words(5120, 8, IntPacking::kWords), 1280);
}

TEST(IntPackings, PutCodesWhereTheFormatSays) {
  std::vector<uint8_t> codes(11, 0);
  codes[1] = 5;
  codes[10] = 6;
  std::vector<uint32_t> words(2);
  int_pack_row(codes, 3, IntPacking::kWords, words);
  EXPECT_EQ(words, (std::vector<uint32_t>{5u << 3, 6u}));
  // Code 10 stands at bits 30 to 32 of the stream: two in the first word, one in the second.
  int_pack_row(codes, 3, IntPacking::kStream, words);
  EXPECT_EQ(words, (std::vector<uint32_t>{5u << 3 | 2u << 30, 1u}));
}

TEST_F(IntGroup, PackingsAndTheStoredLayoutAreInvertible) {
  for (const int bits : kBits) {
    for (int round = 0; round < 20; ++round) {
      const auto codes = random_codes(between(1, 700), bits);
      const auto inputs = static_cast<int64_t>(codes.size());
      std::vector<uint8_t> back(codes.size(), 0xff);
      for (const IntPacking packing : kPackings) {
        std::vector<uint32_t> words(static_cast<size_t>(int_packed_words(inputs, bits, packing)), 0xdeadbeef);
        int_pack_row(codes, bits, packing, words);
        EXPECT_TRUE(int_unpack_row(words, bits, packing, back));
        EXPECT_EQ(back, codes) << bits;
      }
      std::vector<std::byte> row(static_cast<size_t>(int_row_bytes(inputs, bits)), std::byte{0xee});
      int_store_row(codes, bits, row);
      back.assign(codes.size(), 0xff);
      EXPECT_TRUE(int_load_row(row, bits, back));
      EXPECT_EQ(back, codes) << bits;
    }
  }
}

TEST_F(IntGroup, EveryStoredBitIsACodesOrFoundOut) {
  for (const int bits : kBits) {
    const auto codes = random_codes(200, bits);
    std::vector<std::byte> row(static_cast<size_t>(int_row_bytes(200, bits)));
    int_store_row(codes, bits, row);
    std::vector<uint8_t> back(codes.size());
    for (size_t bit = 0; bit < row.size() * 8; ++bit) {
      row[bit / 8] ^= std::byte{1} << bit % 8;
      const bool clean = int_load_row(row, bits, back);
      EXPECT_NE(clean, back == codes) << "bit " << bit;
      row[bit / 8] ^= std::byte{1} << bit % 8;
    }
  }
}

TEST_F(IntGroup, BitsThatBelongToNoCodeAreFoundOut) {
  for (const IntPacking packing : kPackings) {
    const auto codes = random_codes(13, 3);
    std::vector<uint32_t> words(2);
    int_pack_row(codes, 3, packing, words);
    std::vector<uint8_t> back(codes.size());
    for (size_t bit = 0; bit < 64; ++bit) {
      words[bit / 32] ^= 1u << bit % 32;
      const bool clean = int_unpack_row(words, 3, packing, back);
      EXPECT_NE(clean, back == codes) << "bit " << bit;
      words[bit / 32] ^= 1u << bit % 32;
    }
  }
}

TEST(IntWeights, AreCodesWithoutTheirOffsetTimesTheScale) {
  const std::vector<uint8_t> codes = {0, 3, 4, 7};
  const std::vector<float> scales = {0.5f, 0.25f};
  std::vector<float> out(4);
  int_decode_row(codes, 3, scales, 2, out);
  EXPECT_EQ(out, (std::vector<float>{-2.0f, -0.5f, 0.0f, 0.75f}));
}

TEST(IntWeights, AreEncodedToTheNearestCode) {
  const std::vector<float> weights = {-4.0f, 1.4f, 3.9f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  std::vector<uint8_t> codes(8);
  std::vector<float> scales(2);
  int_encode_row(weights, 3, 4, codes, scales);
  EXPECT_EQ(codes, (std::vector<uint8_t>{0, 5, 7, 4, 4, 4, 4, 4}));
  EXPECT_EQ(scales, (std::vector<float>{1.0f, 1.0f}));
}

TEST(IntWeights, OtherSizesAreInternalErrors) {
  std::vector<uint8_t> codes(16);
  std::vector<std::byte> row(47);
  EXPECT_THROW(int_store_row(codes, 3, row), base::Error);
  EXPECT_THROW((void)int_load_row(row, 3, codes), base::Error);
  std::vector<uint32_t> words(3);
  EXPECT_THROW((void)int_unpack_row(words, 3, IntPacking::kWords, codes), base::Error);
  EXPECT_THROW(int_store_row(codes, 5, row), base::Error);
}

}  // namespace
}  // namespace tandem::numeric
