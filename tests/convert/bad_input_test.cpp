// Every source that cannot be converted ends in one line with the tensor and the figures, and leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_folder.h"
#include "convert/convert.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace tandem::testing;

class BadSource : public ::testing::Test {
 protected:
  // The message of the conversion's error, after which there must be neither an artifact nor a partial one.
  std::string refusal() {
    std::string message;
    try {
      convert(source_, out_, quiet_options());
    } catch (const base::Error& error) {
      EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput) << error.what();
      message = error.what();
    }
    EXPECT_FALSE(fs::exists(out_));
    EXPECT_FALSE(fs::exists(folder_ / "model.tandem.partial"));
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  }

  TempFolder folder_;
  fs::path source_ = folder_ / "source";
  fs::path out_ = folder_ / "model.tandem";
};

constexpr const char* kExpert = "model.language_model.layers.1.mlp.experts.3.";

TEST_F(BadSource, NegativeBlockScale) {
  copy_folder(demo_flash(), source_);
  overwrite_tensor(source_, std::string(kExpert) + "up_proj.weight_scale", 2 * 16 + 5, "\x80");
  EXPECT_THAT(refusal(), AllOf(HasSubstr(std::string(kExpert) + "up_proj.weight_scale"), HasSubstr("2"), HasSubstr("5"),
                               HasSubstr("0x80")));
}

TEST_F(BadSource, BlockScaleThatIsNoNumber) {
  copy_folder(demo_flash(), source_);
  overwrite_tensor(source_, std::string(kExpert) + "down_proj.weight_scale", 0, "\x7f");
  EXPECT_THAT(refusal(), AllOf(HasSubstr(std::string(kExpert) + "down_proj.weight_scale"), HasSubstr("0x7F")));
}

TEST_F(BadSource, TensorScaleThatIsNoNumber) {
  copy_folder(demo_flash(), source_);
  const std::string name = std::string(kExpert) + "gate_proj.weight_scale_2";
  overwrite_tensor(source_, name, 0, std::string_view("\0\0\xc0\x7f", 4));
  EXPECT_THAT(refusal(), AllOf(HasSubstr(name), HasSubstr("0x7FC00000"), HasSubstr("between 2^-100 and 2^100")));
}

TEST_F(BadSource, NegativeInputScale) {
  copy_folder(demo_flash(), source_);
  const std::string name = std::string(kExpert) + "gate_proj.input_scale";
  overwrite_tensor(source_, name, 0, std::string_view("\0\0\x80\xbf", 4));
  EXPECT_THAT(refusal(), AllOf(HasSubstr(name), HasSubstr("0xBF800000")));
}

TEST_F(BadSource, DraftExpertCodeThatIsNoNumber) {
  copy_folder(demo_flash(), source_);
  overwrite_tensor(source_, "mtp.layers.0.mlp.experts.5.up_proj.weight", 3 * 256 + 7, "\xff");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("mtp.layers.0.mlp.experts.5.up_proj.weight"), HasSubstr("[3, 7]")));
}

TEST_F(BadSource, InfiniteBlockScaleOfADraftExpert) {
  copy_folder(demo_flash(), source_);
  overwrite_tensor(source_, "mtp.layers.0.mlp.experts.5.down_proj.weight_scale_inv", 2,
                   std::string_view("\x80\x7f", 2));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("experts.5.down_proj.weight_scale_inv"), HasSubstr("[1, 0]")));
}

TEST_F(BadSource, NgramRowThatIsNoNumber) {
  copy_folder(demo_flash(), source_);
  const std::string name = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_2.weight";
  overwrite_tensor(source_, name, 8000 * 16 + 3, "\x7f");
  EXPECT_THAT(refusal(), AllOf(HasSubstr(name), HasSubstr("[8000, 3]")));
}

TEST_F(BadSource, ADownloadThatIsCorrupt) {
  copy_folder(qsa_random(), source_);
  const fs::path records = source_ / ".cache" / "huggingface" / "download";
  fs::create_directories(records);
  base::write_text(records / "model.safetensors.metadata",
                   std::string(40, 'b') + "\n" + std::string(64, '0') + "\n1.5\n");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("is corrupt"), HasSubstr(std::string(64, '0'))));
}

TEST_F(BadSource, NoFolder) {
  EXPECT_THAT(refusal(), HasSubstr("is not a folder"));
}

TEST_F(BadSource, NoConfiguration) {
  copy_folder(qsa_random(), source_);
  fs::remove(source_ / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("config.json"));
}

TEST_F(BadSource, ATruncatedShard) {
  copy_folder(qsa_random(), source_);
  fs::resize_file(source_ / "model.safetensors", fs::file_size(source_ / "model.safetensors") - 1);
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors"));
}

TEST_F(BadSource, AMissingShard) {
  copy_folder(demo_flash(), source_);
  fs::remove(source_ / "model-00002-of-00002.safetensors");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("missing")));
}

// Renames a tensor, or changes a word of the header, in place: the new text must be as long.
void edit_header(const fs::path& file, const std::string& from, const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  const std::string text = base::read_text(file, 1 << 28);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos);
  base::File::open_write(file).write_at(at, std::as_bytes(std::span(to)));
}

TEST_F(BadSource, ARenamedTensor) {
  copy_folder(qsa_random(), source_);
  edit_header(source_ / "model.safetensors", "layers.0.linear_attn.A_log", "layers.0.linear_attn.B_log");
  EXPECT_THAT(refusal(), HasSubstr("layers.0.linear_attn."));
}

TEST_F(BadSource, ATensorOfAnotherShape) {
  copy_folder(qsa_random(), source_);
  edit_header(source_ / "model.safetensors", "\"shape\":[256,128]", "\"shape\":[128,256]");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("[128, 256]"), HasSubstr("[256, 128]")));
}

TEST_F(BadSource, AnUnknownArchitecture) {
  copy_folder(qsa_random(), source_);
  base::write_text(source_ / "config.json", R"({"model_type":"gpt9","architectures":["Gpt9"]})");
  EXPECT_THAT(refusal(), HasSubstr("gpt9"));
}

TEST_F(BadSource, AShardThatChangesUnderway) {
  copy_folder(qsa_random(), source_);
  Options options = quiet_options();
  options.stop = [&](size_t done) {
    if (done == 3) fs::resize_file(source_ / "model.safetensors", 20000);
    return false;
  };
  EXPECT_THAT(error_of([&] { convert(source_, out_, options); }), HasSubstr("model.safetensors"));
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_FALSE(fs::exists(folder_ / "model.tandem.partial"));
}

}  // namespace
}  // namespace tandem::convert
