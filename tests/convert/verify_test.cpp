#include "convert/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_folder.h"
#include "convert/convert.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using artifact::Artifact;
using artifact::Object;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace tandem::testing;

constexpr const char* kExperts = "model.language_model.layers.0.mlp.experts";

class Verifying : public ::testing::Test {
 protected:
  void SetUp() override { convert(demo_flash(), out_, quiet_options()); }

  Object object(const std::string& name) const { return Artifact::open(out_).at(name); }
  void overwrite(const Object& target, uint64_t byte, std::string_view text) const {
    base::File::open_write(out_ / artifact::part_name(target.part))
        .write_at(target.offset + byte, std::as_bytes(std::span(text)));
  }
  // Enters the checksums of the objects as they are now, as somebody would who changed an artifact on purpose.
  void sign() const {
    const Artifact artifact = Artifact::open(out_);
    edit_directory(out_, [&](base::Json& json) {
      for (base::Json& entry : json["objects"]) {
        const Object& found = artifact.at(entry["name"].get<std::string>());
        std::vector<std::byte> bytes(found.bytes);
        artifact.read(found, 0, bytes);
        entry["xxh3_128"] = base::xxh3_128_hex(bytes);
      }
    });
  }
  Verification alone() const { return verify(Artifact::open(out_), std::nullopt, true); }
  Verification against(const fs::path& source = demo_flash()) const {
    return verify(Artifact::open(out_), source, true);
  }

  TempFolder folder_;
  fs::path out_ = folder_ / "model.tandem";
};

TEST_F(Verifying, ReadsEveryObject) {
  const Verification found = alone();
  EXPECT_THAT(found.faults, IsEmpty());
  EXPECT_EQ(found.objects, Artifact::open(out_).objects().size());
  EXPECT_EQ(found.tensors, 0u);
}

TEST_F(Verifying, NamesTheObjectThatIsCorrupt) {
  const Object target = object("lm_head.weight");
  overwrite(target, target.bytes - 1, "\x5a");
  const Verification found = alone();
  EXPECT_THAT(found.faults, ElementsAre(AllOf(HasSubstr("lm_head.weight"), HasSubstr("part-00000.bin"),
                                              HasSubstr(std::to_string(target.offset)), HasSubstr("checksum"))));
}

TEST_F(Verifying, NoticesPaddingThatIsNotZero) {
  const Object target = object("model.language_model.layers.0.linear_attn.A_log");
  overwrite(target, target.bytes + 7, "x");
  EXPECT_THAT(alone().faults, ElementsAre(AllOf(HasSubstr("A_log"), HasSubstr("padding"))));
}

TEST_F(Verifying, NamesTensorAndByteThatDifferFromTheSource) {
  const Object target = object("lm_head.weight");
  std::vector<std::byte> byte(1);
  Artifact::open(out_).read(target, 1234, byte);
  const char changed = static_cast<char>(std::to_integer<uint8_t>(byte[0]) ^ 1);
  overwrite(target, 1234, std::string_view(&changed, 1));
  sign();
  EXPECT_THAT(alone().faults, IsEmpty());
  const Verification found = against();
  ASSERT_TRUE(found.first_difference.has_value());
  EXPECT_EQ(found.first_difference->name, "lm_head.weight");
  EXPECT_EQ(found.first_difference->byte, 1234u);
  EXPECT_EQ(found.first_difference->expected, std::to_integer<uint8_t>(byte[0]));
  EXPECT_EQ(found.first_difference->found, static_cast<uint8_t>(changed));
  EXPECT_EQ(found.differing, 1u);
  EXPECT_THAT(found.faults, ElementsAre(AllOf(HasSubstr("lm_head.weight"), HasSubstr("byte 1234"))));
}

TEST_F(Verifying, FindsACodeInsideAnExpertsUnits) {
  // Expert 1, up: unit (row tile 2, input tile 1) of 256 / 64 = 4 input tiles, word 3, row 5: inputs 88 … 95 of row 37.
  const Object target = object(kExperts);
  const uint64_t unit = (64 / 16) * (256 / 64) + 2 * 4 + 1;
  const uint64_t at = target.record_bytes + unit * 576 + (3 * 16 + 5) * 4;
  std::vector<std::byte> word(4);
  Artifact::open(out_).read(target, at, word);
  const char changed = static_cast<char>(std::to_integer<uint8_t>(word[1]) ^ 0x10);
  overwrite(target, at + 1, std::string_view(&changed, 1));
  sign();
  const Verification found = against();
  ASSERT_TRUE(found.first_difference.has_value());
  EXPECT_EQ(found.first_difference->name, std::string(kExperts) + ".1.up_proj.weight");
  EXPECT_EQ(found.first_difference->byte, 37u * 128 + 88 / 2 + 1);
}

TEST_F(Verifying, FindsAScaleInsideAnExpertsUnits) {
  // Expert 2, down [256, 64]: unit of row tile 3, scales of row 9, block 2.
  const Object target = object(kExperts);
  const uint64_t unit = 2 * (64 / 16) * (256 / 64) + 3;
  overwrite(target, 2 * target.record_bytes + unit * 576 + 512 + 9 * 4 + 2, std::string_view("\0", 1));
  sign();
  const Verification found = against();
  ASSERT_TRUE(found.first_difference.has_value());
  EXPECT_EQ(found.first_difference->name, std::string(kExperts) + ".2.down_proj.weight_scale");
  EXPECT_EQ(found.first_difference->byte, (3u * 16 + 9) * 4 + 2);
}

TEST_F(Verifying, NoticesPaddingInsideARecord) {
  const Object target = object(kExperts);
  overwrite(target, target.record_bytes - 1, "x");
  sign();
  EXPECT_THAT(against().faults, ElementsAre(AllOf(HasSubstr(kExperts), HasSubstr("padding inside"))));
}

TEST_F(Verifying, ComparesTheTexts) {
  copy_folder(demo_flash(), folder_ / "source");
  std::string text = base::read_text(folder_ / "source" / "chat_template.jinja", 1 << 20);
  text[100] ^= 1;
  base::write_text(folder_ / "source" / "chat_template.jinja", text);
  const Verification found = against(folder_ / "source");
  ASSERT_TRUE(found.first_difference.has_value());
  EXPECT_EQ(found.first_difference->name, "chat_template.jinja");
  EXPECT_EQ(found.first_difference->byte, 100u);
}

TEST_F(Verifying, NoticesWhatOneSideLacks) {
  const Verification found = against(demo_dense());
  EXPECT_FALSE(found.holds());
  EXPECT_THAT(found.faults, Contains(AllOf(HasSubstr("model.language_model.norm.weight"),
                                           HasSubstr("the source has it, the artifact does not"))));
  EXPECT_THAT(found.faults,
              Contains(AllOf(HasSubstr(kExperts), HasSubstr("the artifact has it, the source does not"))));
}

TEST_F(Verifying, NoticesAnotherShape) {
  copy_folder(demo_flash(), folder_ / "source");
  // The same bytes under another shape.
  edit_directory(out_, [](base::Json& json) {
    for (base::Json& entry : json["objects"]) {
      if (entry["name"] == "lm_head.weight") entry["shape"] = {256, 4096};
    }
  });
  EXPECT_THAT(against().faults,
              Contains(AllOf(HasSubstr("lm_head.weight"), HasSubstr("[256, 4096]"), HasSubstr("[4096, 256]"))));
}

}  // namespace
}  // namespace tandem::convert
