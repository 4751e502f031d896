// tools/read_artifact.py was written from docs/artifact.md alone: what it recovers must be what the checkpoint has.
#include "python_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "numeric/nvfp4.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using namespace tandem::testing;

TEST_F(PythonReader, RecoversEveryKindOfTensor) {
  convert(demo_flash(), out_, quiet_options());
  const std::string experts = "model.language_model.layers.2.mlp.experts.17.";
  const std::string draft = "mtp.layers.0.mlp.experts.23.";
  const std::vector<std::string> names = {"lm_head.weight",
                                          "model.language_model.layers.0.linear_attn.A_log",
                                          experts + "gate_proj.weight",
                                          experts + "up_proj.weight_scale",
                                          experts + "down_proj.weight",
                                          experts + "down_proj.weight_scale",
                                          experts + "up_proj.weight_scale_2",
                                          experts + "down_proj.input_scale",
                                          draft + "up_proj.weight",
                                          draft + "down_proj.weight_scale_inv"};
  std::vector<std::string> command = {"tensor"};
  command.insert(command.end(), names.begin(), names.end());
  ASSERT_EQ(read(command), 0);
  size_t at = 0;
  for (const std::string& name : names) {
    const std::string expected = source_bytes(demo_flash(), name);
    EXPECT_TRUE(output_.compare(at, expected.size(), expected) == 0) << name;
    at += expected.size();
  }
  EXPECT_EQ(at, output_.size());
}

TEST_F(PythonReader, RecoversNgramRows) {
  convert(demo_flash(), out_, quiet_options());
  const std::string table = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding";
  ASSERT_EQ(read({"tensor", table + ".row.16515"}), 0);  // 2 * 8256 + 3
  EXPECT_TRUE(output_ == source_bytes(demo_flash(), table + ".shard_2.weight").substr(3 * 16, 16));
}

TEST_F(PythonReader, RecoversFusedExperts) {
  convert(qsa_random(), out_, quiet_options());
  const std::string module = "model.language_model.layers.1.mlp.experts";
  ASSERT_EQ(read({"tensor", module + ".2.up_proj.weight", module + ".3.down_proj.weight"}), 0);
  const std::string gate_up = source_bytes(qsa_random(), module + ".gate_up_proj");  // [4, 64, 128]
  EXPECT_TRUE(output_ == gate_up.substr((2 * 64 + 32) * 128 * 2, 32 * 128 * 2) +
                             source_bytes(qsa_random(), module + ".down_proj").substr(size_t{3} * 128 * 32 * 2));
}

TEST_F(PythonReader, DecodesWeights) {
  convert(demo_flash(), out_, quiet_options());
  const std::string name = "model.language_model.layers.0.mlp.experts.3.down_proj.weight";
  ASSERT_EQ(read({"values", name, "64"}), 0);
  const base::Json values = base::parse_json(output_, "values");
  const std::string codes = source_bytes(demo_flash(), name);
  std::vector<float> expected(256 * 64);
  const auto bytes = [](const std::string& text) {
    return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  const std::string scales = source_bytes(demo_flash(), name + "_scale");
  float scale_2 = 0;
  std::memcpy(&scale_2, source_bytes(demo_flash(), name + "_scale_2").data(), sizeof scale_2);
  numeric::nvfp4_decode(bytes(codes), bytes(scales), 256, 64, {.stored = scale_2}, expected);
  ASSERT_EQ(values.size(), 64u);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(values[i].get<float>(), expected[i]) << i;
}

TEST_F(PythonReader, ListsTheObjectsAndRefusesWhatDoesNotFit) {
  convert(qsa_random(), out_, quiet_options());
  ASSERT_EQ(read({}), 0);
  EXPECT_THAT(output_, HasSubstr("lm_head.weight bf16 [256, 128] 65536"));
  ASSERT_EQ(read({"dump", "config.json"}), 0);
  EXPECT_EQ(output_, base::read_text(qsa_random() / "config.json", 1 << 20));
  fs::resize_file(out_ / "part-00000.bin", 4096);
  EXPECT_NE(read({}), 0);
}

TEST(PythonReaderScript, HasAtMost150Lines) {
  EXPECT_LE(std::ranges::count(base::read_text(PythonReader::script(), 1 << 20), '\n'), 150);
}

}  // namespace
}  // namespace tandem::convert
