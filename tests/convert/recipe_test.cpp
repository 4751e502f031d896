#include "convert/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_folder.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using artifact::Encoding;
using checkpoint::Checkpoint;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace tandem::testing;

constexpr const char* kModule = "model.language_model.layers.0.mlp.experts";

// Plans a made-up checkpoint, and proves for every object that inverting what was made gives back each byte of each
// tensor once.
class Recipe : public ::testing::Test {
 protected:
  const Plans& plan() {
    write_checkpoint(folder_ / "source", file_);
    checkpoint_.emplace(Checkpoint::open(folder_ / "source"));
    plans_ = plan_published(*checkpoint_, {});
    return plans_;
  }
  std::string refusal() {
    return error_of([&] { plan(); });
  }
  const ObjectPlan& at(const std::string& name) const {
    for (const auto& plan : plans_) {
      if (plan->object().name == name) return *plan;
    }
    throw std::runtime_error("no object " + name);
  }
  std::vector<std::byte> make(const ObjectPlan& plan) const {
    std::vector<std::byte> bytes(plan.object().bytes);
    for (uint64_t chunk = 0; chunk < plan.chunks(); ++chunk) {
      plan.make(*checkpoint_, chunk, std::span(bytes).subspan(chunk * plan.chunk_bytes(), plan.chunk_size(chunk)));
    }
    return bytes;
  }
  void expect_invertible() {
    std::map<std::string, std::vector<std::byte>> recovered;
    std::map<std::string, uint64_t> counts;
    for (const auto& plan : plans_) {
      const std::vector<std::byte> bytes = make(*plan);
      for (uint64_t chunk = 0; chunk < plan->chunks(); ++chunk) {
        const auto sink = [&](const checkpoint::Tensor& tensor, uint64_t offset, std::span<const std::byte> piece) {
          std::vector<std::byte>& target = recovered[tensor.name];
          target.resize(tensor.bytes);
          std::ranges::copy(piece, target.begin() + static_cast<ptrdiff_t>(offset));
          counts[tensor.name] += piece.size();
        };
        EXPECT_TRUE(
            plan->invert(chunk, std::span(bytes).subspan(chunk * plan->chunk_bytes(), plan->chunk_size(chunk)), sink));
      }
    }
    for (const checkpoint::Tensor& tensor : checkpoint_->tensors()) {
      EXPECT_EQ(recovered[tensor.name], checkpoint_->read(tensor)) << tensor.name;
      EXPECT_EQ(counts[tensor.name], tensor.bytes) << tensor.name;
    }
  }
  void add_nvfp4(int experts, int64_t inner, int64_t hidden, bool input_scales) {
    for (int e = 0; e < experts; ++e) {
      for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = projection[0] == 'd';
        const int64_t rows = down ? hidden : inner;
        const int64_t inputs = down ? inner : hidden;
        const std::string name = fmt::format("{}.{}.{}", kModule, e, projection);
        file_.add(name + ".weight", "U8", {rows, inputs / 2});
        file_.add(name + ".weight_scale", "F8_E4M3", {rows, inputs / 16});
        file_.add(name + ".weight_scale_2", "F32", {});
        if (input_scales) file_.add(name + ".input_scale", "F32", {});
      }
    }
  }
  void add_plain(int experts, int64_t inner, int64_t hidden, const char* dtype, bool scales) {
    for (int e = 0; e < experts; ++e) {
      for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = projection[0] == 'd';
        const int64_t rows = down ? hidden : inner;
        const int64_t inputs = down ? inner : hidden;
        const std::string name = fmt::format("{}.{}.{}", kModule, e, projection);
        file_.add(name + ".weight", dtype, {rows, inputs});
        if (scales) file_.add(name + ".weight_scale_inv", "BF16", {(rows + 127) / 128, (inputs + 127) / 128});
      }
    }
  }

  TempFolder folder_;
  SafetensorsFile file_;
  std::optional<Checkpoint> checkpoint_;
  Plans plans_;
};

TEST_F(Recipe, Nvfp4Experts) {
  add_nvfp4(3, 128, 192, true);
  plan();
  EXPECT_EQ(at(kModule).object().encoding, Encoding::kExpertsNvfp4);
  EXPECT_THAT(at(kModule).object().shape, ElementsAre(3, 128, 192));
  EXPECT_THAT(at(std::string(kModule) + ".scalars").object().shape, ElementsAre(3, 6));
  expect_invertible();
}

TEST_F(Recipe, Nvfp4ExpertsWithoutInputScales) {
  add_nvfp4(2, 64, 64, false);
  plan();
  EXPECT_THAT(at(std::string(kModule) + ".scalars").object().shape, ElementsAre(2, 3));
  expect_invertible();
}

TEST_F(Recipe, Fp8BlockExpertsWithPartialBlocks) {
  add_plain(3, 96, 224, "F8_E4M3", true);
  plan();
  EXPECT_EQ(at(kModule).object().encoding, Encoding::kExpertsFp8Block);
  EXPECT_THAT(at(kModule).object().shape, ElementsAre(3, 96, 224));
  expect_invertible();
}

TEST_F(Recipe, Fp8BlockExpertsThatAreNotWholeUnitsAreRefused) {
  add_plain(3, 96, 208, "F8_E4M3", true);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(kModule), HasSubstr("[3, 96, 208]"), HasSubstr("multiples of 32")));
}

TEST_F(Recipe, Bf16ExpertsOneByOne) {
  add_plain(12, 24, 40, "BF16", false);
  plan();
  EXPECT_EQ(at(kModule).object().encoding, Encoding::kExpertsBF16);
  expect_invertible();
}

TEST_F(Recipe, FusedExpertsEqualTheSameExpertsOneByOne) {
  std::string gate_up(2 * 2 * 16 * 8 * 2, '\0'), down(2 * 8 * 16 * 2, '\0');
  for (size_t i = 0; i < gate_up.size(); ++i) gate_up[i] = static_cast<char>(i * 5);
  for (size_t i = 0; i < down.size(); ++i) down[i] = static_cast<char>(i * 3);
  file_.add(std::string(kModule) + ".gate_up_proj", "BF16", {2, 32, 8}, gate_up);
  file_.add(std::string(kModule) + ".down_proj", "BF16", {2, 8, 16}, down);
  plan();
  EXPECT_THAT(at(kModule).object().shape, ElementsAre(2, 16, 8));
  const std::vector<std::byte> fused = make(at(kModule));
  expect_invertible();

  SafetensorsFile separate;
  for (int e = 0; e < 2; ++e) {
    const std::string name = fmt::format("{}.{}.", kModule, e);
    separate.add(name + "gate_proj.weight", "BF16", {16, 8}, gate_up.substr(e * 512, 256));
    separate.add(name + "up_proj.weight", "BF16", {16, 8}, gate_up.substr(e * 512 + 256, 256));
    separate.add(name + "down_proj.weight", "BF16", {8, 16}, down.substr(e * 256, 256));
  }
  file_ = separate;
  plan();
  EXPECT_EQ(make(at(kModule)), fused);
}

TEST_F(Recipe, NgramShardsFollowOneAnotherInNumericOrder) {
  // 11 shards, so that the order of the names is not that of the numbers; 7 rows of 160 bytes do not fill a block.
  for (int shard = 0; shard < 11; ++shard) {
    file_.add(fmt::format("l.ple_embedding.ngram_embedding.shard_{}.weight", shard), "F8_E4M3", {7, 160},
              std::string(7 * 160, static_cast<char>(shard + 1)));
  }
  plan();
  const ObjectPlan& table = at("l.ple_embedding.ngram_embedding");
  EXPECT_EQ(table.object().encoding, Encoding::kNgramF8E4M3);
  EXPECT_THAT(table.object().shape, ElementsAre(77, 160));
  EXPECT_EQ(table.object().bytes, 4 * 4096u);
  const std::vector<std::byte> bytes = make(table);
  for (uint64_t row = 0; row < 77; ++row) {
    const uint64_t at_byte = row / 25 * 4096 + row % 25 * 160;
    EXPECT_EQ(std::to_integer<uint64_t>(bytes[at_byte]), row / 7 + 1) << row;
    EXPECT_EQ(std::to_integer<uint64_t>(bytes[at_byte + 159]), row / 7 + 1) << row;
  }
  expect_invertible();
}

TEST_F(Recipe, AnNgramTableOfSeveralChunks) {
  // 40,000 rows of 400 bytes, 10 to a block: 4,000 blocks are two chunks; shards end inside blocks.
  file_.add("l.ngram_embedding.shard_0.weight", "BF16", {20475, 200});
  file_.add("l.ngram_embedding.shard_1.weight", "BF16", {19525, 200});
  plan();
  EXPECT_EQ(at("l.ngram_embedding").chunks(), 2u);
  expect_invertible();
}

TEST_F(Recipe, EmptyAndRankZeroTensors) {
  file_.add("empty", "F32", {0, 5}, "");
  file_.add("scalar", "F32", {});
  file_.add("codes", "U8", {3});
  plan();
  EXPECT_EQ(at("empty").chunks(), 0u);
  expect_invertible();
}

TEST_F(Recipe, VisionTensorsAreKept) {
  file_.add("model.visual.patch_embed.proj.weight", "BF16", {4, 3, 2, 2, 2});
  plan();
  EXPECT_EQ(artifact::object_group(at("model.visual.patch_embed.proj.weight").object()), artifact::Group::kVision);
  expect_invertible();
}

TEST_F(Recipe, AMissingExpertIsNamed) {
  file_.add(std::string(kModule) + ".0.gate_proj.weight", "BF16", {8, 8});
  file_.add(std::string(kModule) + ".2.gate_proj.weight", "BF16", {8, 8});
  EXPECT_THAT(refusal(), AllOf(HasSubstr(std::string(kModule) + ".1"), HasSubstr("experts up to 2")));
}

TEST_F(Recipe, AMissingProjectionIsNamed) {
  add_nvfp4(2, 64, 64, true);
  file_.add(std::string(kModule) + ".2.gate_proj.weight", "U8", {64, 32});
  EXPECT_THAT(refusal(), AllOf(HasSubstr(std::string(kModule) + ".2.gate_proj.weight_scale"), HasSubstr("is missing")));
}

TEST_F(Recipe, AnExpertOfAnotherShapeIsNamedWithBoth) {
  add_plain(1, 24, 40, "BF16", false);
  file_.add(std::string(kModule) + ".1.gate_proj.weight", "BF16", {24, 40});
  file_.add(std::string(kModule) + ".1.up_proj.weight", "BF16", {40, 24});
  file_.add(std::string(kModule) + ".1.down_proj.weight", "BF16", {40, 24});
  EXPECT_THAT(refusal(), AllOf(HasSubstr(std::string(kModule) + ".1.up_proj.weight"), HasSubstr("BF16 [40, 24]"),
                               HasSubstr("BF16 [24, 40]")));
}

TEST_F(Recipe, Nvfp4ExpertsThatAreNotWholeUnitsAreRefused) {
  add_nvfp4(1, 32, 64, true);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("[1, 32, 64]"), HasSubstr("multiples of 64")));
}

TEST_F(Recipe, UnknownFormsOfExpertsAreRefused) {
  file_.add(std::string(kModule) + ".0.gate_proj.weight_packed", "U8", {8, 8});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("weight_packed"), HasSubstr("known form of experts")));
}

TEST_F(Recipe, HalfOfAFusedPairIsRefused) {
  file_.add(std::string(kModule) + ".gate_up_proj", "BF16", {2, 32, 8});
  EXPECT_THAT(refusal(), AllOf(HasSubstr(kModule), HasSubstr("gate_up_proj and down_proj")));
}

TEST_F(Recipe, AMissingNgramShardIsNamed) {
  file_.add("l.ngram_embedding.shard_0.weight", "BF16", {4, 8});
  file_.add("l.ngram_embedding.shard_2.weight", "BF16", {4, 8});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("l.ngram_embedding.shard_1.weight"), HasSubstr("shards up to 2")));
}

TEST_F(Recipe, NgramShardsOfOtherWidthsAreRefused) {
  file_.add("l.ngram_embedding.shard_0.weight", "BF16", {4, 8});
  file_.add("l.ngram_embedding.shard_1.weight", "BF16", {4, 9});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("shard_1"), HasSubstr("BF16 [4, 9]"), HasSubstr("BF16 [4, 8]")));
}

TEST_F(Recipe, NumberFormatsThatArtifactsDoNotHoldAreRefused) {
  file_.add("a.weight", "I32", {1}, "1234");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("a.weight"), HasSubstr("I32 [1]")));
}

TEST_F(Recipe, ATensorWithTheNameOfAModuleIsRefused) {
  file_.add("l.ngram_embedding.shard_0.weight", "BF16", {4, 8});
  file_.add("l.ngram_embedding", "BF16", {4, 8});
  EXPECT_THAT(refusal(), HasSubstr("l.ngram_embedding: is the name of a tensor and of another part"));
}

}  // namespace
}  // namespace tandem::convert
