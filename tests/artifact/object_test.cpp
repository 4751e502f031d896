#include "artifact/object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::artifact {
namespace {

uint64_t bytes_of(Encoding encoding, const std::vector<int64_t>& shape) {
  const std::optional<ObjectSize> size = object_size(encoding, shape);
  return size ? size->bytes : 0;
}

TEST(ObjectSize, PlainObjectsHaveTheirElements) {
  EXPECT_EQ(bytes_of(Encoding::kBF16, {248320, 2560}), 1'271'398'400u);
  EXPECT_EQ(bytes_of(Encoding::kF32, {}), 4u);
  EXPECT_EQ(bytes_of(Encoding::kI64, {16}), 128u);
  EXPECT_EQ(object_size(Encoding::kU8, std::vector<int64_t>{0, 7})->bytes, 0u);
}

TEST(ObjectSize, AFlashNextExpertIs675Pages) {
  const ObjectSize size = object_size(Encoding::kExpertsNvfp4, std::vector<int64_t>{512, 640, 2560}).value();
  EXPECT_EQ(size.record_bytes, 2'764'800u);
  EXPECT_EQ(size.record_bytes, 675 * 4096u);
  EXPECT_EQ(size.bytes, 512 * size.record_bytes);
}

TEST(ObjectSize, FlashNextNgramRowsStand25ToABlock) {
  EXPECT_EQ(ngram_rows_per_block(160), 25u);
  EXPECT_EQ(bytes_of(Encoding::kNgramF8E4M3, {320'001'536, 160}), uint64_t{12'800'062} * 4096);
  EXPECT_EQ(bytes_of(Encoding::kNgramBF16, {13, 160}), 2 * 4096u);
}

TEST(ObjectSize, Fp8BlocksCountBegunBlocks) {
  // 3 * 64 * 256 codes; grids of 1 x 2, 1 x 2 and 2 x 1 blocks.
  EXPECT_EQ(object_size(Encoding::kExpertsFp8Block, std::vector<int64_t>{1, 64, 256})->record_bytes, 53248u);
}

TEST(ObjectSize, IntegerCodesAreWholeUnitsARow) {
  EXPECT_EQ(bytes_of(Encoding::kInt3, {17408, 5120}), uint64_t{17408} * 5120 * 3 / 8);
  EXPECT_EQ(bytes_of(Encoding::kInt3, {2, 129}), 2 * 2 * 48u);
  EXPECT_EQ(bytes_of(Encoding::kInt4, {5, 128}), 5 * 64u);
  EXPECT_EQ(bytes_of(Encoding::kInt8, {5, 1}), 5 * 128u);
}

TEST(ObjectSize, ShapesThatCannotBeHaveNone) {
  const auto none = [](Encoding encoding, const std::vector<int64_t>& shape) {
    return !object_size(encoding, shape).has_value();
  };
  EXPECT_TRUE(none(Encoding::kBF16, {-1}));
  EXPECT_TRUE(none(Encoding::kBF16, {INT64_MAX, 2}));
  EXPECT_TRUE(none(Encoding::kBF16, {int64_t{1} << 40, int64_t{1} << 40}));
  EXPECT_TRUE(none(Encoding::kText, {1, 2}));
  EXPECT_TRUE(none(Encoding::kExpertsNvfp4, {2, 40, 64}));
  EXPECT_TRUE(none(Encoding::kExpertsNvfp4, {0, 64, 64}));
  EXPECT_TRUE(none(Encoding::kExpertsBF16, {INT64_MAX, INT64_MAX, INT64_MAX}));
  EXPECT_TRUE(none(Encoding::kExpertsFp8Block, {1, 64}));
  EXPECT_TRUE(none(Encoding::kExpertsFp8Block, {1, 48, 64}));
  EXPECT_TRUE(none(Encoding::kExpertsFp8Block, {1, 64, 48}));
  EXPECT_TRUE(none(Encoding::kNgramF8E4M3, {1, 4097}));
  EXPECT_TRUE(none(Encoding::kNgramF8E4M3, {INT64_MAX, 1}));
  EXPECT_TRUE(none(Encoding::kInt3, {128}));
  EXPECT_TRUE(none(Encoding::kInt3, {0, 128}));
  EXPECT_TRUE(none(Encoding::kInt8, {1, INT64_MAX}));
  EXPECT_TRUE(none(Encoding::kInt8, {int64_t{1} << 40, int64_t{1} << 40}));
}

TEST(Encodings, HaveNamesThatLeadBack) {
  for (int i = 0; i <= static_cast<int>(Encoding::kInt8); ++i) {
    const auto encoding = static_cast<Encoding>(i);
    EXPECT_EQ(encoding_from_name(encoding_name(encoding)), encoding);
  }
  EXPECT_FALSE(encoding_from_name("bf17").has_value());
}

TEST(PlaceObjects, FillsPartsAndAligns) {
  std::vector<Object> objects(5);
  objects[0].bytes = 5000;
  objects[1].bytes = 3000;   // ends at 8192 + 3000 of 12288
  objects[2].bytes = 5000;   // does not fit behind it
  objects[3].bytes = 50000;  // larger than a part
  objects[4].bytes = 1;
  place_objects(objects, 12288);
  std::vector<std::pair<uint32_t, uint64_t>> places;
  for (const Object& object : objects) places.emplace_back(object.part, object.offset);
  EXPECT_THAT(places, ::testing::ElementsAre(std::pair(0u, 0u), std::pair(0u, 8192u), std::pair(1u, 0u),
                                             std::pair(2u, 0u), std::pair(3u, 0u)));
  EXPECT_THAT(part_sizes(objects), ::testing::ElementsAre(12288, 8192, 53248, 4096));
}

TEST(ObjectGroup, FollowsTheName) {
  const auto group = [](const char* name) {
    Object object;
    object.name = name;
    return object_group(object);
  };
  EXPECT_EQ(group("model.language_model.layers.3.mlp.experts"), Group::kExperts);
  EXPECT_EQ(group("model.language_model.layers.3.mlp.experts.scalars"), Group::kExperts);
  EXPECT_EQ(group("model.language_model.layers.3.mlp.gate.weight"), Group::kDense);
  EXPECT_EQ(group("model.language_model.embed_tokens.weight"), Group::kEmbeddings);
  EXPECT_EQ(group("lm_head.weight"), Group::kEmbeddings);
  EXPECT_EQ(group("mtp.layers.0.mlp.experts"), Group::kDraft);
  EXPECT_EQ(group("model.visual.pos_embed.weight"), Group::kVision);
  EXPECT_EQ(group("model.language_model.layers.1.ple.ple_embedding.ngram_embedding"), Group::kNgram);
}

}  // namespace
}  // namespace tandem::artifact
