#include "artifact/artifact.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "small_artifact.h"
#include "temp_folder.h"

namespace tandem::artifact {
namespace {

using base::Json;
using tandem::testing::edit_directory;
using tandem::testing::error_of;
using tandem::testing::small_content;
using tandem::testing::TempFolder;
using tandem::testing::write_small;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

void overwrite(const fs::path& file, uint64_t offset, std::string_view text) {
  base::File::open_write(file).write_at(offset, std::as_bytes(std::span(text)));
}

class SmallArtifact : public ::testing::Test {
 protected:
  void SetUp() override { write_small(out_); }
  std::string open_error() const {
    return error_of([&] { Artifact::open(out_); });
  }
  std::string open_error_after(const std::function<void(Json&)>& edit) const {
    edit_directory(out_, edit);
    return open_error();
  }

  TempFolder folder_;
  fs::path out_ = folder_ / "small.tandem";
};

TEST_F(SmallArtifact, GivesBackWhatWasWritten) {
  const Artifact artifact = Artifact::open(out_);
  EXPECT_EQ(artifact.format_version(), 1);
  EXPECT_EQ(artifact.objects().size(), 7u);
  EXPECT_EQ(artifact.config()["model_type"], "qwen4_exp");
  EXPECT_EQ(artifact.tokenizer_json(), "");
  EXPECT_EQ(artifact.chat_template(), "");
  EXPECT_TRUE(artifact.generation_config().is_null());
  EXPECT_EQ(artifact.provenance()["tool"], "test");
  for (const Object& object : artifact.objects()) {
    EXPECT_EQ(artifact.read(object), small_content(object)) << object.name;
    EXPECT_EQ(object.offset % kAlignment, 0u);
    EXPECT_EQ(artifact.find(object.name), &object);
  }
  const Object& experts = artifact.at("layers.0.mlp.experts");
  EXPECT_EQ(experts.record_bytes, 16384u);  // 3 * 64 * 128 * 9 / 16 = 13,824
  EXPECT_EQ(experts.bytes, 2 * 16384u);
  EXPECT_EQ(artifact.at("ngram_embedding").bytes, 3 * 4096u);
  std::vector<std::byte> piece(100);
  artifact.read(experts, 16384 + 50, piece);
  const std::vector<std::byte> whole = small_content(experts);
  EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + 16384 + 50));
}

TEST_F(SmallArtifact, PadsWithZerosToWholePages) {
  const Artifact artifact = Artifact::open(out_);
  const Object& weight = artifact.at("a.weight");
  std::vector<std::byte> padding(kAlignment - weight.bytes);
  artifact.part(weight.part).read_at(weight.offset + weight.bytes, padding);
  EXPECT_EQ(padding, std::vector<std::byte>(padding.size()));
  EXPECT_EQ(artifact.part(0).size() % kAlignment, 0u);
}

TEST_F(SmallArtifact, RefusesToReadBeyondAnObject) {
  const Artifact artifact = Artifact::open(out_);
  const Object& weight = artifact.at("a.weight");
  std::vector<std::byte> out(weight.bytes + 1);
  EXPECT_THAT(error_of([&] { artifact.read(weight, 0, out); }), HasSubstr("a.weight"));
  EXPECT_THAT(error_of([&] { artifact.read(weight, UINT64_MAX, std::span(out).first(1)); }), HasSubstr("a.weight"));
  EXPECT_THAT(error_of([&] { (void)artifact.at("b.weight"); }), HasSubstr("has no object b.weight"));
}

TEST_F(SmallArtifact, ACorruptObjectIsRefusedWhenItIsRead) {
  const Object object = Artifact::open(out_).at("a.weight");
  overwrite(out_ / "part-00000.bin", object.offset + 3, "x");
  const Artifact artifact = Artifact::open(out_);
  EXPECT_THAT(error_of([&] { (void)artifact.read(artifact.at("a.weight")); }),
              AllOf(HasSubstr("part-00000.bin"), HasSubstr("checksum of a.weight"), HasSubstr(object.xxh3_128)));
}

TEST_F(SmallArtifact, ACorruptTextIsRefusedWhenItIsOpened) {
  const Object object = Artifact::open(out_).at("config.json");
  overwrite(out_ / "part-00000.bin", object.offset + 3, "x");
  EXPECT_THAT(open_error(), HasSubstr("checksum of config.json"));
}

TEST_F(SmallArtifact, ACorruptDirectoryIsRefused) {
  overwrite(out_ / "tandem.json", fs::file_size(out_ / "tandem.json") - 20, "9");
  EXPECT_THAT(open_error(), HasSubstr("directory's checksum"));
}

TEST_F(SmallArtifact, ATruncatedDirectoryIsRefusedWithItsSizes) {
  const uint64_t bytes = fs::file_size(out_ / "tandem.json");
  fs::resize_file(out_ / "tandem.json", bytes - 1);
  EXPECT_THAT(open_error(), HasSubstr("bytes of directory where its header says"));
  fs::resize_file(out_ / "tandem.json", 10);
  EXPECT_THAT(open_error(), HasSubstr("no header line"));
  fs::resize_file(out_ / "tandem.json", 0);
  EXPECT_THAT(open_error(), HasSubstr("no header line"));
}

TEST_F(SmallArtifact, TruncatedAndMissingPartsAreRefused) {
  const uint64_t bytes = fs::file_size(out_ / "part-00000.bin");
  fs::resize_file(out_ / "part-00000.bin", bytes - 4096);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("part-00000.bin"), HasSubstr(std::to_string(bytes - 4096)),
                                  HasSubstr(std::to_string(bytes))));
  fs::remove(out_ / "part-00000.bin");
  EXPECT_THAT(open_error(), HasSubstr("is missing"));
}

TEST_F(SmallArtifact, ForeignFilesAndFoldersAreRefused) {
  EXPECT_THAT(error_of([&] { Artifact::open(folder_ / "absent"); }), HasSubstr("is not a folder"));
  EXPECT_THAT(error_of([&] { Artifact::open(folder_.path()); }), HasSubstr("has no tandem.json"));
  base::write_text(out_ / "tandem.json", "{\"format\":\"other\",\"version\":1}\n{}");
  EXPECT_THAT(open_error(), HasSubstr("\"format\": \"tandem\""));
  base::write_text(out_ / "tandem.json", "{\"format\":\"tandem\",\"version\":2}\n{}");
  EXPECT_THAT(open_error(), HasSubstr("format version 2; this build reads versions 1 to 1"));
}

TEST_F(SmallArtifact, ObjectsThatOverlapAreRefused) {
  EXPECT_THAT(open_error_after([](Json& json) { json["objects"][2]["offset"] = json["objects"][1]["offset"]; }),
              AllOf(HasSubstr("a.weight"), HasSubstr("layers.0.mlp.experts"), HasSubstr("overlap")));
}

TEST_F(SmallArtifact, ObjectsOutsideTheirPartAreRefused) {
  EXPECT_THAT(open_error_after([](Json& json) { json["objects"][2]["offset"] = 4096 * 1000; }),
              HasSubstr("ends beyond its part"));
}

TEST_F(SmallArtifact, OffsetsThatOverflowAreRefused) {
  EXPECT_THAT(open_error_after([](Json& json) { json["objects"][2]["offset"] = INT64_MAX / 4096 * 4096; }),
              HasSubstr("ends beyond its part"));
}

TEST_F(SmallArtifact, UnalignedOffsetsAreRefused) {
  EXPECT_THAT(open_error_after([](Json& json) { json["objects"][1]["offset"] = 100; }),
              HasSubstr("not a multiple of 4096"));
}

TEST_F(SmallArtifact, NumbersThatCannotBeAreRefusedByName) {
  const auto edit = [](const char* key, const Json& value) {
    return [key, value](Json& json) { json["objects"][1][key] = value; };
  };
  EXPECT_THAT(open_error_after(edit("offset", -4096)), HasSubstr("\"offset\" is -4096"));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("part", 7)), HasSubstr("part 7 of 1 parts"));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("shape", {3, 6})), HasSubstr("asks for 36"));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("shape", {-3, 5})), HasSubstr("cannot hold"));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("shape", {INT64_MAX, INT64_MAX})), HasSubstr("cannot hold"));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("shape", {UINT64_MAX})), HasSubstr("too large"));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("shape", {"3"})), HasSubstr("a string, not a whole number"));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("encoding", "zip")), HasSubstr("encoding \"zip\""));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("name", "")), HasSubstr("name of 0 bytes"));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("name", "scalar")), HasSubstr("has the object scalar twice"));
  write_small(out_);
  EXPECT_THAT(open_error_after(edit("xxh3_128", "12")), HasSubstr("32 hexadecimal digits"));
}

TEST_F(SmallArtifact, ExpertsWithoutTheirScalarsAreRefused) {
  EXPECT_THAT(open_error_after([](Json& json) { json["objects"][3]["name"] = "other"; }),
              HasSubstr("not their layers.0.mlp.experts.scalars"));
}

TEST_F(SmallArtifact, ARecordStrideThatDoesNotFitIsRefused) {
  EXPECT_THAT(open_error_after([](Json& json) { json["objects"][2]["record_bytes"] = 4096; }),
              HasSubstr("in records of 4096"));
}

TEST_F(SmallArtifact, PartsUnderOtherNamesAreRefused) {
  EXPECT_THAT(open_error_after([](Json& json) { json["parts"][0]["file"] = "../../etc/passwd"; }),
              HasSubstr("not part-00000.bin"));
}

TEST_F(SmallArtifact, MembersThatAreNotKnownAreIgnored) {
  edit_directory(out_, [](Json& json) {
    json["new_member"] = {1, 2, 3};
    json["objects"][0]["colour"] = "blue";
  });
  EXPECT_EQ(Artifact::open(out_).objects().size(), 7u);
}

TEST_F(SmallArtifact, WithoutItsConfigurationItIsRefused) {
  EXPECT_THAT(open_error_after([](Json& json) { json["objects"][0]["name"] = "other.json"; }),
              HasSubstr("holds no config.json"));
}

TEST_F(SmallArtifact, AChangeUnderwayIsNoticed) {
  const Artifact artifact = Artifact::open(out_);
  EXPECT_EQ(error_of([&] { artifact.check_unchanged(); }), "");
  const fs::path part = out_ / "part-00000.bin";
  fs::last_write_time(part, fs::last_write_time(part) + std::chrono::seconds(2));
  EXPECT_THAT(error_of([&] { artifact.check_unchanged(); }), HasSubstr("was changed while it was in use"));
}

TEST_F(SmallArtifact, ATruncationUnderwayIsAnErrorNotACrash) {
  const Artifact artifact = Artifact::open(out_);
  fs::resize_file(out_ / "part-00000.bin", 4096);
  EXPECT_THAT(error_of([&] { (void)artifact.read(artifact.at("ngram_embedding")); }), HasSubstr("ends at byte"));
  EXPECT_THAT(error_of([&] { artifact.check_unchanged(); }), HasSubstr("4096 now"));
}

TEST(ChatTemplate, IsFoundInTheTokenizerConfigWhereItHasNoFile) {
  TempFolder folder;
  const fs::path out = folder / "x.tandem";
  const fs::path partial = partial_folder(out);
  const std::string config = tandem::testing::kConfig;
  const std::string tokenizer =
      R"({"chat_template":[{"name":"tools","template":"T"},{"name":"default","template":"D"}]})";
  std::vector<Object> objects = {
      tandem::testing::object("config.json", Encoding::kText, {static_cast<int64_t>(config.size())}),
      tandem::testing::object("tokenizer_config.json", Encoding::kText, {static_cast<int64_t>(tokenizer.size())})};
  place_objects(objects, 1 << 20);
  Writer writer(partial, objects, tandem::testing::new_journal(partial));
  writer.append(std::as_bytes(std::span(config)));
  writer.append(std::as_bytes(std::span(tokenizer)));
  writer.finish(out, Json::object());
  EXPECT_EQ(Artifact::open(out).chat_template(), "D");
}

}  // namespace
}  // namespace tandem::artifact
