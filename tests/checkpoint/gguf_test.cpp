#include "checkpoint/gguf.h"

#include <gmock/gmock.h>

#include "files.h"
#include "gguf_files.h"

namespace tandem::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class GgufFolder : public TemporaryFolder {
 protected:
  std::string gguf_refused(const std::string& name) {
    return refusal([&] { (void)Gguf::open(folder_ / name); });
  }
  // Part `number` (from 1) of `count`, with one tensor of its own.
  GgufFileBytes part(uint64_t number, uint64_t count, uint32_t tensors) {
    GgufFileBytes file;
    file.pair_u16("split.no", static_cast<uint16_t>(number - 1));
    file.pair_u16("split.count", static_cast<uint16_t>(count));
    file.pair("split.tensors.count", 5, GgufBytes().u32(tensors).text);
    file.pair_u32("own", static_cast<uint32_t>(number));
    file.tensor(fmt::format("t{}", number), {2}, 0, 8, static_cast<char>('a' + number));
    return file;
  }
  void write(const std::string& name, const GgufFileBytes& file) { write_bytes(folder_ / name, file.file()); }
};

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_F(GgufFolder, ReadsTheDataOfATensor) {
  GgufFileBytes file;
  file.tensor("a", {3}, 0, 12, 'a');
  file.tensor("b", {2, 2}, 1, 8, 'b');
  write("m.gguf", file);
  const Gguf gguf = Gguf::open(folder_ / "m.gguf");
  EXPECT_EQ(gguf.parts().size(), 1u);
  EXPECT_EQ(text_of(gguf.read(gguf.at("b"))), "bbbbbbbb");
  std::vector<std::byte> some(4);
  gguf.read(gguf.at("a"), 8, some);
  EXPECT_EQ(text_of(some), "aaaa");
  EXPECT_EQ(gguf.find("c"), nullptr);
  EXPECT_THAT(refusal([&] { (void)gguf.at("c"); }), HasSubstr("m.gguf: lacks the tensor c"));
  EXPECT_THROW(gguf.read(gguf.at("a"), 9, some), base::Error);
  EXPECT_THROW(gguf.read(gguf.at("a"), UINT64_MAX, some), base::Error);
}

TEST_F(GgufFolder, NoticesThatTheFileChanged) {
  GgufFileBytes file;
  file.tensor("a", {3}, 0, 12, 'a');
  write("m.gguf", file);
  const Gguf gguf = Gguf::open(folder_ / "m.gguf");
  write_bytes(folder_ / "m.gguf", "short");
  EXPECT_THAT(refusal([&] { (void)gguf.read(gguf.at("a")); }), HasSubstr("changed since it was opened"));
}

TEST_F(GgufFolder, OpensAllPartsByTheNameOfAny) {
  for (uint64_t i = 1; i <= 3; ++i) write(fmt::format("m-0000{}-of-00003.gguf", i), part(i, 3, 3));
  for (uint64_t i = 1; i <= 3; ++i) {
    const Gguf gguf = Gguf::open(folder_ / fmt::format("m-0000{}-of-00003.gguf", i));
    ASSERT_EQ(gguf.parts().size(), 3u);
    EXPECT_EQ(gguf.metadata().unsigned_integer("own"), 1u);
    EXPECT_EQ(text_of(gguf.read(gguf.at("t1"))), "bbbbbbbb");
    EXPECT_EQ(text_of(gguf.read(gguf.at("t3"))), "dddddddd");
    EXPECT_EQ(gguf.at("t3").part, 2u);
  }
}

TEST_F(GgufFolder, RefusesPartsThatDoNotFitTogether) {
  const std::string first = "m-00001-of-00002.gguf";
  const std::string second = "m-00002-of-00002.gguf";
  write(first, part(1, 2, 2));
  EXPECT_THAT(gguf_refused(first), HasSubstr(second + ": is missing; " + first + " is part 1 of 2"));
  write(second, part(1, 2, 2));
  EXPECT_THAT(gguf_refused(first), HasSubstr(second + ": is named as part 2, but its split.no is 0, counted from 0"));
  write(second, part(2, 3, 2));
  EXPECT_THAT(gguf_refused(first), HasSubstr("is one of 3 parts with 2 tensors in all, but " + first));
  write(second, part(2, 2, 3));
  EXPECT_THAT(gguf_refused(first), HasSubstr("is one of 2 parts with 3 tensors in all"));
  write(first, part(1, 2, 3));
  EXPECT_THAT(gguf_refused(second), HasSubstr("and its other parts should have 3 tensors, but have 2"));
  GgufFileBytes twice = part(2, 2, 3);
  twice.tensor("t1", {2}, 0, 8, 'x');
  write(second, twice);
  EXPECT_THAT(gguf_refused(first), HasSubstr(second + ": holds tensor t1, which is in " + first + " too"));
  GgufFileBytes plain;
  write(second, plain);
  EXPECT_THAT(gguf_refused(second), HasSubstr("is named as part 2 of 2, but has no split.count"));
  EXPECT_THAT(gguf_refused(first), HasSubstr("lacks the key split.tensors.count"));
}

TEST_F(GgufFolder, RefusesAPartWithoutItsName) {
  write("m.gguf", part(1, 2, 2));
  EXPECT_THAT(gguf_refused("m.gguf"), HasSubstr("is one of 2 parts, but is not named ...-0000K-of-00002.gguf"));
  write("m-00001-of-00003.gguf", part(1, 2, 2));
  EXPECT_THAT(gguf_refused("m-00001-of-00003.gguf"), HasSubstr("is one of 2 parts, but is not named"));
  write("m-00001-of-60000.gguf", part(1, 60000, 2));
  EXPECT_THAT(gguf_refused("m-00001-of-60000.gguf"), HasSubstr("is one of 60000 parts; at most 1000 are allowed"));
}

TEST_F(GgufFolder, RefusesWhatIsNoFile) {
  EXPECT_THAT(gguf_refused("absent.gguf"), HasSubstr("does not exist"));
  EXPECT_THAT(gguf_refused("."), HasSubstr("is not a file"));
}

GgufMetadata metadata_of(const std::vector<GgufMetadata::Pair>& pairs) {
  return GgufMetadata(pairs, "m.gguf");
}

template <typename Number>
GgufValue number_value(GgufType type, std::vector<Number> numbers, bool array = false) {
  GgufValue value;
  value.type = type;
  value.is_array = array;
  value.count = numbers.size();
  const auto bytes = std::as_bytes(std::span(numbers));
  value.numbers.assign(bytes.begin(), bytes.end());
  return value;
}

GgufValue string_value(std::vector<std::string> strings, bool array = false) {
  GgufValue value;
  value.type = GgufType::kString;
  value.is_array = array;
  value.count = strings.size();
  value.strings = std::move(strings);
  return value;
}

TEST(GgufMetadata, GivesIntegersOfEveryWidth) {
  const GgufMetadata metadata = metadata_of({{"u8", number_value<uint8_t>(GgufType::kU8, {200})},
                                             {"i8", number_value<int8_t>(GgufType::kI8, {-100})},
                                             {"u16", number_value<uint16_t>(GgufType::kU16, {60000})},
                                             {"i16", number_value<int16_t>(GgufType::kI16, {-30000})},
                                             {"u32", number_value<uint32_t>(GgufType::kU32, {4'000'000'000})},
                                             {"i32", number_value<int32_t>(GgufType::kI32, {-5})},
                                             {"u64", number_value<uint64_t>(GgufType::kU64, {UINT64_MAX})},
                                             {"i64", number_value<int64_t>(GgufType::kI64, {INT64_MIN})}});
  EXPECT_EQ(metadata.unsigned_integer("u8"), 200u);
  EXPECT_EQ(metadata.unsigned_integer("u16"), 60000u);
  EXPECT_EQ(metadata.unsigned_integer("u32"), 4'000'000'000u);
  EXPECT_EQ(metadata.unsigned_integer("u64"), UINT64_MAX);
  EXPECT_EQ(metadata.integer("i64"), INT64_MIN);
  EXPECT_EQ(metadata.integer("i32"), -5);
  EXPECT_EQ(metadata.integer("u32"), 4'000'000'000);
  EXPECT_THAT(refusal([&] { (void)metadata.integer("u64"); }),
              HasSubstr("u64 is u64 18446744073709551615, but a whole"));
  EXPECT_EQ(metadata.number("i8"), -100);
  EXPECT_EQ(metadata.number("i16"), -30000);
  EXPECT_EQ(metadata.number("i64"), -0x1p63);
  EXPECT_EQ(metadata.number("u64"), 0x1p64);
  EXPECT_THAT(refusal([&] { (void)metadata.unsigned_integer("i32"); }),
              HasSubstr("m.gguf: i32 is i32 -5, but a whole number, not negative, is expected"));
  EXPECT_THAT(refusal([&] { (void)metadata.unsigned_integer("absent"); }), HasSubstr("m.gguf: lacks the key absent"));
  EXPECT_THAT(refusal([&] { (void)metadata.string("u8"); }), HasSubstr("u8 is u8 200, but a string is expected"));
}

TEST(GgufMetadata, GivesFloatsBoolsAndStrings) {
  const GgufMetadata metadata = metadata_of({{"f32", number_value<float>(GgufType::kF32, {1e-6f})},
                                             {"f64", number_value<double>(GgufType::kF64, {2.5})},
                                             {"yes", number_value<uint8_t>(GgufType::kBool, {1})},
                                             {"text", string_value({"a\nb"})}});
  EXPECT_EQ(metadata.number("f32"), 1e-6f);
  EXPECT_EQ(metadata.number("f64"), 2.5);
  EXPECT_TRUE(metadata.boolean("yes"));
  EXPECT_EQ(metadata.string("text"), "a\nb");
  EXPECT_THAT(refusal([&] { (void)metadata.boolean("text"); }), HasSubstr("text is string \"a.b\", but a bool"));
  EXPECT_THAT(refusal([&] { (void)metadata.number("yes"); }), HasSubstr("yes is bool true, but a number"));
  EXPECT_THAT(refusal([&] { (void)metadata.unsigned_integer("f64"); }), HasSubstr("f64 is f64 2.5, but"));
}

TEST(GgufMetadata, GivesArrays) {
  const GgufMetadata metadata = metadata_of({{"ints", number_value<int32_t>(GgufType::kI32, {3, -4}, true)},
                                             {"big", number_value<uint64_t>(GgufType::kU64, {UINT64_MAX}, true)},
                                             {"floats", number_value<float>(GgufType::kF32, {0.5f}, true)},
                                             {"none", number_value<uint32_t>(GgufType::kU32, {}, true)},
                                             {"texts", string_value({"a", "", "c"}, true)},
                                             {"one", number_value<uint32_t>(GgufType::kU32, {7})}});
  EXPECT_THAT(metadata.integers("ints"), ElementsAre(3, -4));
  EXPECT_THAT(metadata.integers("none"), ElementsAre());
  EXPECT_THAT(metadata.numbers("ints"), ElementsAre(3.0, -4.0));
  EXPECT_THAT(metadata.numbers("floats"), ElementsAre(0.5));
  EXPECT_THAT(metadata.strings("texts"), ElementsAre("a", "", "c"));
  EXPECT_THAT(refusal([&] { (void)metadata.integers("big"); }),
              HasSubstr("big holds 18446744073709551615, which is too"));
  EXPECT_THAT(refusal([&] { (void)metadata.integers("floats"); }),
              HasSubstr("floats is 1 f32, but an array of integers"));
  EXPECT_THAT(refusal([&] { (void)metadata.integers("one"); }), HasSubstr("one is u32 7, but an array of integers"));
  EXPECT_THAT(refusal([&] { (void)metadata.unsigned_integer("ints"); }), HasSubstr("ints is 2 i32s, but"));
  EXPECT_THAT(refusal([&] { (void)metadata.strings("ints"); }), HasSubstr("an array of strings is expected"));
}

TEST(GgufMetadata, DescriptionsStayShortAndPrintable) {
  EXPECT_EQ(describe(string_value({std::string(100, 'x') + "\x1b"})),
            "string \"" + std::string(64, 'x') + "\" and 37 bytes more");
  EXPECT_EQ(describe(string_value({"\x1b[2J\xff"})), "string \".[2J.\"");
}

}  // namespace
}  // namespace tandem::checkpoint
