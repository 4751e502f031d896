#include "checkpoint/safetensors.h"

#include <array>
#include <gmock/gmock.h>

#include "files.h"

namespace tandem::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Tensor> parse(const std::string& header, uint64_t data_bytes) {
  return parse_safetensors_header(header, 8 + header.size() + data_bytes, 3, "m.safetensors");
}

std::string refused(const std::string& header, uint64_t data_bytes) {
  const std::string message = refusal([&] { (void)parse(header, data_bytes); });
  EXPECT_THAT(message, testing::StartsWith("m.safetensors: "));
  return message;
}

TEST(SafetensorsHeader, GivesTheTensorsByOffset) {
  const std::string header = "{" + entry("b", "BF16", {3, 2}, 8, 20) + "," + R"("__metadata__":{"format":"pt\n"},)" +
                             entry("a", "F32", {}, 4, 8) + "," + entry("c", "F32", {1}, 0, 4) + "}   ";
  const std::vector<Tensor> tensors = parse(header, 20);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "c");
  EXPECT_EQ(tensors[1].name, "a");
  EXPECT_EQ(tensors[2].name, "b");
  EXPECT_THAT(tensors[1].shape, ElementsAre());
  EXPECT_THAT(tensors[2].shape, ElementsAre(3, 2));
  EXPECT_EQ(tensors[2].offset, 8 + header.size() + 8);
  EXPECT_EQ(tensors[2].bytes, 12u);
  EXPECT_EQ(tensors[2].shard, 3u);
  EXPECT_EQ(describe(tensors[2]), "BF16 [3, 2]");
}

TEST(SafetensorsHeader, KnowsEveryDtypeAndItsSize) {
  constexpr std::array<std::pair<const char*, int>, 20> kKnown = {
      {{"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
       {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},    {"F64", 64},
       {"I64", 64}, {"U64", 64}, {"C64", 64},  {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}}};
  for (const auto& [name, bits] : kKnown) {
    const auto bytes = static_cast<uint64_t>(bits);
    const std::vector<Tensor> tensors = parse("{" + entry("x", name, {2, 4}, 0, bytes) + "}", bytes);
    EXPECT_EQ(tensors[0].bytes, bytes);
    EXPECT_EQ(dtype_name(tensors[0].dtype), name);
    EXPECT_EQ(dtype_bits(tensors[0].dtype), bits);
  }
}

TEST(SafetensorsHeader, EmptyTensorsMayShareAnOffset) {
  const std::string header = "{" + entry("z", "F32", {4}, 0, 16) + "," + entry("e", "F32", {0, 5}, 0, 0) + "," +
                             entry("f", "F32", {7, 0}, 16, 16) + "," + entry("g", "U8", {0}, 16, 16) + "}";
  EXPECT_EQ(parse(header, 16).size(), 4u);
  EXPECT_EQ(parse("{}", 0).size(), 0u);
  // However large the other dimensions are, there is nothing to multiply.
  EXPECT_EQ(parse("{" + entry("e", "F32", {INT64_MAX, INT64_MAX, 0}, 0, 0) + "}", 0).size(), 1u);
}

TEST(SafetensorsHeader, RefusesHolesOverlapsAndWrongEnds) {
  EXPECT_THAT(refused("{" + entry("a", "U8", {4}, 0, 4) + "," + entry("b", "U8", {4}, 6, 10) + "}", 10),
              HasSubstr("tensor b begins at byte 6 of the data, but a ends at byte 4: a hole of 2 bytes"));
  EXPECT_THAT(refused("{" + entry("a", "U8", {4}, 0, 4) + "," + entry("b", "U8", {4}, 3, 7) + "}", 7),
              HasSubstr("tensor b begins at byte 3 of the data, but a ends at byte 4: an overlap of 1 bytes"));
  EXPECT_THAT(refused("{" + entry("a", "U8", {4}, 2, 6) + "}", 6), HasSubstr("a hole of 2 bytes"));
  EXPECT_THAT(refused("{" + entry("a", "U8", {4}, 0, 4) + "," + entry("b", "U8", {4}, 0, 4) + "}", 4),
              HasSubstr("an overlap of 4 bytes"));
  EXPECT_THAT(refused("{" + entry("a", "U8", {4}, 0, 4) + "}", 3),
              HasSubstr("tensor a (U8 [4]) ends at byte 4 of the data, but the file holds only 3: it is truncated"));
  EXPECT_THAT(refused("{" + entry("a", "U8", {4}, 0, 4) + "}", 9),
              HasSubstr("the tensors end at byte 4 of the data, but the file holds 9: 5 bytes too many"));
  EXPECT_THAT(refused("{}", 1), HasSubstr("1 bytes too many"));
}

TEST(SafetensorsHeader, RefusesSizesThatDoNotFitTheShape) {
  EXPECT_THAT(refused("{" + entry("w", "BF16", {2, 3}, 0, 10) + "}", 10),
              HasSubstr("tensor w is BF16 [2, 3], 12 bytes, but its data_offsets are 0 to 10"));
  EXPECT_THAT(refused("{" + entry("w", "BF16", {2, 3}, 12, 0) + "}", 12), HasSubstr("data_offsets are 12 to 0"));
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{INT64_MAX, 2}, {1LL << 32, 1LL << 32}, {INT64_MAX}, {3037000500, 3037000500}}) {
    EXPECT_THAT(refused("{" + entry("w", "F32", shape, 0, 0) + "}", 0),
                HasSubstr("not a whole number of bytes below 2^63"));
  }
}

TEST(SafetensorsHeader, SubByteTypesMustFillWholeBytes) {
  EXPECT_EQ(parse("{" + entry("w", "F4", {3, 2}, 0, 3) + "}", 3)[0].bytes, 3u);
  EXPECT_EQ(parse("{" + entry("w", "F6_E2M3", {4}, 0, 3) + "}", 3)[0].bytes, 3u);
  EXPECT_THAT(refused("{" + entry("w", "F4", {3}, 0, 2) + "}", 2),
              HasSubstr("tensor w is F4 [3], which is not a whole"));
  EXPECT_THAT(refused("{" + entry("w", "F6_E3M2", {3}, 0, 3) + "}", 3), HasSubstr("not a whole number of bytes"));
}

TEST(SafetensorsHeader, RefusesDuplicates) {
  EXPECT_THAT(refused("{" + entry("a", "U8", {1}, 0, 1) + "," + entry("\\u0061", "U8", {1}, 1, 2) + "}", 2),
              HasSubstr("tensor a stands twice"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("tensor a has \"dtype\" twice"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("\"shape\" twice"));
  EXPECT_THAT(refused(R"({"__metadata__":{},"__metadata__":{}})", 0), HasSubstr("__metadata__ stands twice"));
  EXPECT_THAT(refused(R"({"__metadata__":{"k":"1","k":"2"}})", 0), HasSubstr("__metadata__ has a key twice"));
}

TEST(SafetensorsHeader, RefusesIncompleteAndStrangeEntries) {
  EXPECT_THAT(refused(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), HasSubstr("tensor a lacks \"dtype\""));
  EXPECT_THAT(refused(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), HasSubstr("tensor a lacks \"shape\""));
  EXPECT_THAT(refused(R"({"a":{"dtype":"U8","shape":[1]}})", 1), HasSubstr("tensor a lacks \"data_offsets\""));
  EXPECT_THAT(refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1),
              HasSubstr("a key other than"));
  EXPECT_THAT(refused("{" + entry("a", "F9", {1}, 0, 1) + "}", 1), HasSubstr("tensor a has the unknown dtype \"F9\""));
  EXPECT_THAT(refused("{" + entry("a", "bf16", {1}, 0, 2) + "}", 2), HasSubstr("unknown dtype \"bf16\""));
  EXPECT_THAT(refused("{" + entry("a", "B\\nF", {1}, 0, 2) + "}", 2), HasSubstr("tensor a has an unknown dtype"));
  for (const char* entry_text :
       {"1", "[]", "\"x\"", "null", R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})",
        R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", R"({"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})",
        R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,2]})",
        R"({"dtype":"U8","shape":[1],"data_offsets":{"0":1}})"}) {
    EXPECT_THAT(refused(std::string("{\"a\":") + entry_text + "}", 1), HasSubstr("is not valid at byte")) << entry_text;
  }
}

TEST(SafetensorsHeader, NumbersAreWholeAndNotNegative) {
  for (const char* number : {"1.0", "-1", "1e0", "\"1\"", "null", "true", "NaN"}) {
    EXPECT_THAT(refused(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}}}})", number), 1),
                HasSubstr("a dimension must be a whole number"));
    EXPECT_THAT(refused(fmt::format(R"({{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,{}]}}}})", number), 1),
                HasSubstr("a data offset must be a whole number"));
  }
  EXPECT_THAT(refused(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1),
              HasSubstr("a dimension is larger than 9223372036854775807"));
}

TEST(SafetensorsHeader, RefusesBadNames) {
  EXPECT_THAT(refused("{" + entry("", "U8", {1}, 0, 1) + "}", 1), HasSubstr("an empty tensor name"));
  EXPECT_THAT(refused("{" + entry("a\\nb", "U8", {1}, 0, 1) + "}", 1), HasSubstr("control character"));
  EXPECT_THAT(refused("{" + entry("a\nb", "U8", {1}, 0, 1) + "}", 1), HasSubstr("control character 0x0A"));
  EXPECT_THAT(refused("{" + entry("a\xFF", "U8", {1}, 0, 1) + "}", 1), HasSubstr("not UTF-8"));
  EXPECT_THAT(refused("{" + entry(std::string(1025, 'n'), "U8", {1}, 0, 1) + "}", 1),
              HasSubstr("a tensor name of 1025 bytes; at most 1024"));
  EXPECT_EQ(parse("{" + entry(std::string(1024, 'n'), "U8", {1}, 0, 1) + "}", 1).size(), 1u);
}

TEST(SafetensorsHeader, RefusesTooManyDimensions) {
  const std::vector<int64_t> ones(17, 1);
  EXPECT_THAT(refused("{" + entry("a", "U8", ones, 0, 1) + "}", 1), HasSubstr("tensor a has more than 16 dimensions"));
}

TEST(SafetensorsHeader, MetadataHoldsStringsOnly) {
  for (const char* value : {"1", "{}", "[]", "null", "true"}) {
    EXPECT_THAT(refused(fmt::format(R"({{"__metadata__":{{"k":{}}}}})", value), 0), HasSubstr("must be strings"))
        << value;
  }
  EXPECT_THAT(refused(R"({"__metadata__":"x"})", 0), HasSubstr("'{' is expected"));
}

TEST(SafetensorsHeader, MustBeOneObjectAndNothingElse) {
  for (const char* header : {"", " {}", "[]", "x", "\xEF\xBB\xBF{}"}) {
    EXPECT_THAT(refused(header, 0), HasSubstr("its header is not an object")) << header;
  }
  EXPECT_THAT(refused("{} {}", 0), HasSubstr("nothing may follow"));
  EXPECT_THAT(refused("{", 0), HasSubstr("the text ends"));
  EXPECT_THAT(refused("{" + entry("a", "U8", {1}, 0, 1) + ",}", 1), HasSubstr("'\"' is expected"));
  const std::string nul("{}\0", 3);
  EXPECT_THAT(refused(nul, 0), HasSubstr("nothing may follow"));
}

std::array<std::byte, 8> prefix(uint64_t length) {
  std::array<std::byte, 8> bytes;
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

TEST(SafetensorsLength, StaysBelowTheLimitAndInsideTheFile) {
  EXPECT_EQ(safetensors_header_bytes(prefix(100), 108, "f"), 100u);
  EXPECT_EQ(safetensors_header_bytes(prefix(100'000'000), 200'000'000, "f"), 100'000'000u);
  EXPECT_THAT(refusal([] { (void)safetensors_header_bytes(prefix(100'000'001), UINT64_MAX, "f"); }),
              HasSubstr("100000001 bytes; at most 100000000"));
  EXPECT_THAT(refusal([] { (void)safetensors_header_bytes(prefix(UINT64_MAX), 100, "f"); }), HasSubstr("at most"));
  EXPECT_THAT(refusal([] { (void)safetensors_header_bytes(prefix(101), 108, "f"); }),
              HasSubstr("a header of 101 bytes, but the file holds only 100"));
  EXPECT_THAT(refusal([] { (void)safetensors_header_bytes(prefix(1), 3, "f"); }), HasSubstr("holds only 0"));
}

std::string index_refusal(const std::string& text) {
  return refusal([&] { (void)parse_safetensors_index(text, "i.json"); });
}

TEST(SafetensorsIndex, GivesFilesInOrderOfTheirNames) {
  const SafetensorsIndex index = parse_safetensors_index(
      R"({"metadata":{"total_size":12.5,"x":{"y":[1]}},"weight_map":{"a":"s2.safetensors","b":"s1.safetensors","c":"s2.safetensors"}})",
      "i.json");
  EXPECT_THAT(index.files, ElementsAre("s1.safetensors", "s2.safetensors"));
  ASSERT_EQ(index.entries.size(), 3u);
  EXPECT_EQ(index.entries[0].tensor, "a");
  EXPECT_EQ(index.entries[0].file, 1u);
  EXPECT_EQ(index.entries[1].file, 0u);
  EXPECT_EQ(index.entries[2].file, 1u);
}

TEST(SafetensorsIndex, FilesArePlainNamesInsideTheFolder) {
  for (const char* name :
       {"../m.safetensors", "/etc/m.safetensors", "a/m.safetensors", "a\\\\m.safetensors", "..", "."}) {
    EXPECT_THAT(index_refusal(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name)), HasSubstr("not a plain name"))
        << name;
  }
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a":"x.bin"}})"), HasSubstr("not named *.safetensors"));
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a":""}})"), HasSubstr("an empty file name"));
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a":"x\u0000.safetensors"}})"), HasSubstr("control character"));
  EXPECT_THAT(index_refusal(fmt::format(R"({{"weight_map":{{"a":"{}.safetensors"}}}})", std::string(300, 'f'))),
              HasSubstr("at most 255"));
}

TEST(SafetensorsIndex, RefusesDuplicatesAndOtherShapes) {
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})"),
              HasSubstr("maps tensor a twice"));
  EXPECT_THAT(index_refusal(R"({"weight_map":{},"weight_map":{}})"), HasSubstr("twice"));
  EXPECT_THAT(index_refusal(R"({"metadata":{}})"), HasSubstr("lacks \"weight_map\""));
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a":1}})"), HasSubstr("'\"' is expected"));
  EXPECT_THAT(index_refusal(R"({"weight_map":[]})"), HasSubstr("'{' is expected"));
  EXPECT_THAT(index_refusal(R"({"metadata":{"a":{"b":{"c":{}}}},"weight_map":{}})"), HasSubstr("too deep"));
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a\u001b":"x.safetensors"}})"), HasSubstr("control character"));
  EXPECT_THAT(index_refusal("[]"), HasSubstr("'{' is expected"));
}

}  // namespace
}  // namespace tandem::checkpoint
