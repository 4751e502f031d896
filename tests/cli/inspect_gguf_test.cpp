// `tandem inspect` of GGUF files.
#include <gmock/gmock.h>

#include "base/json.h"
#include "tandem_runner.h"
#include "tests/checkpoint/gguf_files.h"

namespace tandem {
namespace {

using checkpoint::GgufBytes;
using checkpoint::GgufFileBytes;
using ::testing::HasSubstr;

class InspectGguf : public ::testing::Test {
 protected:
  InspectGguf() {
    GgufFileBytes file;
    file.pair_string("general.architecture", "qwen35");
    file.pair_u32("qwen35.block_count", 64);
    file.pair("a.negative", 11, GgufBytes().number(INT64_MIN + 1).text);
    file.pair("a.bool", 7, std::string(1, '\1'));
    file.pair("sections", 9, GgufBytes().u32(5).u64(2).u32(11).u32(10).text);
    file.pair("tokens", 9, GgufBytes().u32(0).u64(65).text + std::string(65, 'x'));
    file.tensor("blk.0.ffn_up.weight", {256, 2}, 22, 164, 'a');
    file.tensor("blk.1.ffn_up.weight", {256, 2}, 22, 164, 'a');
    file.tensor("output_norm.weight", {4}, 0, 16, 'a');
    path_ = runner_.file("m.gguf", file.file());
  }

  testing::TandemRunner runner_{"tandem-inspect-gguf"};
  std::string path_;
};

TEST_F(InspectGguf, TellsMetadataAndTensorsByType) {
  const auto text = runner_.run({"inspect", path_});
  EXPECT_EQ(text.code, 0) << text.error;
  EXPECT_THAT(text.out, HasSubstr("GGUF version 3, 3 tensors in 1 part\n"));
  EXPECT_THAT(text.out, HasSubstr("general.architecture                             string \"qwen35\"\n"));
  EXPECT_THAT(text.out, HasSubstr("IQ2_S           328 B      2 tensors  2.562 bits a weight\n"));
  EXPECT_THAT(text.out, HasSubstr("all             344 B      3 tensors\n"));
  EXPECT_THAT(text.out, ::testing::Not(HasSubstr("blk.0")));
  EXPECT_THAT(runner_.run({"inspect", path_, "--objects"}).out,
              HasSubstr("blk.0.ffn_up.weight IQ2_S [2, 256] 164 bytes"));
}

TEST_F(InspectGguf, AnswersInJson) {
  const auto answer = runner_.run({"inspect", path_, "--json", "--objects"});
  EXPECT_EQ(answer.code, 0) << answer.error;
  const base::Json json = base::parse_json(answer.out, "answer");
  EXPECT_EQ(json["metadata"]["qwen35.block_count"], 64);
  EXPECT_EQ(json["metadata"]["a.negative"], INT64_MIN + 1);
  EXPECT_EQ(json["metadata"]["a.bool"], true);
  EXPECT_EQ(json["metadata"]["sections"], base::Json({11, 10}));
  EXPECT_EQ(json["metadata"]["tokens"]["count"], 65);
  EXPECT_EQ(json["types"]["IQ2_S"]["bytes"], 328);
  EXPECT_EQ(json["tensors"][2]["name"], "output_norm.weight");
  EXPECT_EQ(json["tensors"][0]["shape"], base::Json({2, 256}));
}

TEST_F(InspectGguf, RefusesABadFileInOneLine) {
  const auto result = runner_.run({"inspect", runner_.file("bad.gguf", "GGUF\2")});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.error, HasSubstr("bad.gguf: is truncated"));
}

}  // namespace
}  // namespace tandem
