// Packed integers: what is kept, what is refused, and what the second reader makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "artifact/artifact.h"
#include "convert/verify.h"
#include "python_reader.h"
#include "tests/support/reencoded_checkpoint.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using artifact::Artifact;
using artifact::Encoding;
using reencode::MatrixForm;
using ::testing::HasSubstr;
using namespace tandem::testing;

constexpr const char* kMatrix = "model.language_model.layers.3.self_attn.k_proj";  // [512, 256]

class Integers : public ::testing::Test {
 protected:
  void make(MatrixForm form) { reencode::write_reencoded(demo_dense(), form, source_, folder_ / "decoded"); }
  std::string refusal() {
    return error_of([&] { convert(source_, out_, quiet_options()); });
  }
  void overwrite(const std::string& suffix, uint64_t offset, std::string_view data) {
    overwrite_tensor(source_, kMatrix + suffix, offset, data);
  }

  TempFolder folder_;
  fs::path source_ = folder_ / "source";
  fs::path out_ = folder_ / "model.tandem";
};

TEST_F(Integers, StandUnderTheNameOfTheirCodes) {
  make(MatrixForm::kInt3Words);
  convert(source_, out_, quiet_options());
  const Artifact artifact = Artifact::open(out_);
  const artifact::Object& codes = artifact.at(std::string(kMatrix) + ".weight_packed");
  EXPECT_EQ(codes.encoding, Encoding::kInt3);
  EXPECT_THAT(codes.shape, ::testing::ElementsAre(512, 256));
  EXPECT_EQ(codes.bytes, 512u * 256 * 3 / 8);
  EXPECT_EQ(codes.packed_words, 26);
  EXPECT_EQ(artifact.at(std::string(kMatrix) + ".weight_scale").encoding, Encoding::kBF16);
  EXPECT_TRUE(verify(artifact, source_, true).holds());
}

TEST_F(Integers, AnotherCodeIsADifference) {
  make(MatrixForm::kInt3Stream);
  convert(source_, out_, quiet_options());
  overwrite(".weight_packed", 100, "\x5a");
  EXPECT_THAT(verify(Artifact::open(out_), source_, true).faults,
              ::testing::ElementsAre(HasSubstr("k_proj.weight_packed: byte 100 is")));
}

TEST_F(Integers, BitsOfNoCodeAreRefused) {
  make(MatrixForm::kInt3Words);
  overwrite(".weight_packed", 4 * 26 * 7 + 3, "\xff");  // bits 30 and 31 of the first word of row 7
  EXPECT_THAT(refusal(), HasSubstr("has bits in row 7 that belong to none of its 256 codes of 3 bits"));
}

TEST_F(Integers, AnotherShapeThanTheConfigsIsRefused) {
  make(MatrixForm::kInt3Words);
  overwrite(".weight_shape", 8, std::string_view("\x00\x02\0\0\0\0\0\0", 8));
  EXPECT_THAT(refusal(), HasSubstr("weight_shape: says [512, 512], but the config asks for [512, 256]"));
}

TEST_F(Integers, AnInfiniteScaleIsRefusedAndANegativeOneIsNot) {
  make(MatrixForm::kInt3Words);
  overwrite(".weight_scale", 2, "\x80\xbf");  // -1
  convert(source_, out_, quiet_options());
  overwrite(".weight_scale", 2, "\x80\x7f");
  fs::remove_all(out_);
  EXPECT_THAT(refusal(), HasSubstr("k_proj.weight_scale: holds 0x7F80, which is no finite scale at [0, 1]"));
}

TEST_F(Integers, OtherNumbersOfBitsAreRefused) {
  make(MatrixForm::kInt3Words);
  base::Json config = base::parse_json(base::read_text(source_ / "config.json", 1 << 20), "config.json");
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 5;
  base::write_text(source_ / "config.json", config.dump());
  EXPECT_THAT(refusal(), HasSubstr("no known packing of 256 inputs in 5 bits"));
}

TEST_F(Integers, ADivisorThatIsAMultiplierIsRefused) {
  make(MatrixForm::kNvfp4Divisor);
  overwrite(".weight_global_scale", 0, std::string_view("\x17\xb7\xd1\x38", 4));  // 1e-4
  EXPECT_THAT(refusal(), HasSubstr("weight_global_scale: holds 0x38D1B717, which is no divisor of a weight"));
}

class IntegersInPython : public PythonReader, public ::testing::WithParamInterface<MatrixForm> {};

TEST_P(IntegersInPython, AreRecoveredAndDecoded) {
  const fs::path source = folder_ / "source";
  const fs::path decoded = folder_ / "decoded";
  reencode::write_reencoded(demo_dense(), GetParam(), source, decoded);
  convert(source, out_, quiet_options());
  const std::string name = std::string(kMatrix) + ".weight_packed";
  ASSERT_EQ(read({"tensor", name}), 0);
  EXPECT_TRUE(output_ == source_bytes(source, name));
  ASSERT_EQ(read({"values", name, "700"}), 0);
  const base::Json values = base::parse_json(output_, "values");
  const checkpoint::Checkpoint twin = checkpoint::Checkpoint::open(decoded);
  std::vector<float> weights(700);
  twin.read(twin.at(std::string(kMatrix) + ".weight"), 0, std::as_writable_bytes(std::span(weights)));
  ASSERT_EQ(values.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(values[i].get<float>(), weights[i]) << i;
}

std::string name_of(const ::testing::TestParamInfo<MatrixForm>& form) {
  return reencode::form_name(form.param);
}
INSTANTIATE_TEST_SUITE_P(Forms, IntegersInPython,
                         ::testing::Values(MatrixForm::kInt3Words, MatrixForm::kInt3Stream, MatrixForm::kInt4,
                                           MatrixForm::kInt8),
                         name_of);

}  // namespace
}  // namespace tandem::convert
