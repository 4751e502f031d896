#include "checkpoint/gguf_header.h"

#include <gmock/gmock.h>

#include "files.h"
#include "gguf_files.h"

namespace tandem::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ8_0 = 8;
constexpr uint32_t kIq2s = 22;
constexpr uint32_t kQ2_0 = 42;

// `beyond`: bytes that the file has behind what is given.
GgufHeader parse_gguf(const std::string& bytes, uint64_t beyond = 0) {
  const GgufRead read = [&](uint64_t offset, std::span<std::byte> out) {
    const uint64_t known = offset < bytes.size() ? std::min<uint64_t>(out.size(), bytes.size() - offset) : 0;
    std::memcpy(out.data(), bytes.data() + offset, known);
    std::fill(out.begin() + static_cast<ptrdiff_t>(known), out.end(), std::byte{0});
  };
  return parse_gguf_header(read, bytes.size() + beyond, 5, "m.gguf");
}

std::string gguf_refused(const std::string& bytes, uint64_t beyond = 0) {
  const std::string message = refusal([&] { (void)parse_gguf(bytes, beyond); });
  EXPECT_THAT(message, testing::StartsWith("m.gguf: "));
  return message;
}

std::string tensor_refused(const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset = 0,
                           uint64_t beyond = 1 << 20) {
  GgufFileBytes file;
  file.entry("T", dims, type, offset);
  return gguf_refused(file.file(), beyond);
}

TEST(GgufHeader, GivesTensorsInTheirOrderWithTheLastDimensionContiguous) {
  GgufFileBytes file;
  file.tensor("experts", {256, 3, 2}, kIq2s, 6 * 82, 'a');
  file.tensor("norm", {7}, kF32, 28, 'b');
  const std::string bytes = file.file();
  const GgufHeader header = parse_gguf(bytes);
  EXPECT_EQ(header.version, 3u);
  EXPECT_EQ(header.alignment, 32u);
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_THAT(header.tensors[0].shape, ElementsAre(2, 3, 256));
  EXPECT_EQ(describe(header.tensors[0]), "IQ2_S [2, 3, 256]");
  EXPECT_EQ(header.tensors[0].bytes, 6u * 82);
  EXPECT_EQ(header.tensors[0].part, 5u);
  EXPECT_EQ(header.data_offset % 32, 0u);
  EXPECT_EQ(bytes.substr(header.tensors[0].offset, 492), std::string(492, 'a'));
  EXPECT_EQ(header.tensors[1].offset, header.data_offset + 512);
  EXPECT_EQ(bytes.substr(header.tensors[1].offset, 28), std::string(28, 'b'));
}

TEST(GgufHeader, ReadsVersion2AndFilesWithoutTensors) {
  GgufFileBytes file;
  file.version = 2;
  file.pair_u32("a.b", 7);
  EXPECT_EQ(parse_gguf(file.head()).metadata.unsigned_integer("a.b"), 7u);
}

TEST(GgufHeader, TakesTheAlignmentFromItsKey) {
  GgufFileBytes file;
  file.alignment = 128;
  file.pair_u32("general.alignment", 128);
  file.tensor("a", {3}, kF32, 12, 'a');
  file.tensor("b", {3}, kF32, 12, 'b');
  const GgufHeader header = parse_gguf(file.file());
  EXPECT_EQ(header.data_offset % 128, 0u);
  EXPECT_EQ(header.tensors[1].offset - header.tensors[0].offset, 128u);
  for (const uint32_t bad : {0u, 3u, 96u}) {
    GgufFileBytes other;
    other.pair_u32("general.alignment", bad);
    EXPECT_THAT(gguf_refused(other.file()), HasSubstr(fmt::format("general.alignment is {}, not a power of two", bad)));
  }
  GgufFileBytes other;
  other.pair_u16("general.alignment", 32);
  EXPECT_THAT(gguf_refused(other.file()), HasSubstr("general.alignment is not one u32"));
}

TEST(GgufHeader, PaddingBehindTheLastTensorMayBeMissingOrThere) {
  GgufFileBytes file;
  file.tensor("a", {3}, kF32, 12, 'a');
  EXPECT_EQ(parse_gguf(file.file()).tensors.size(), 1u);
  EXPECT_EQ(parse_gguf(file.file(), 20).tensors.size(), 1u);
}

TEST(GgufHeader, RefusesWhatIsNotLittleEndianGgufOfAKnownVersion) {
  GgufFileBytes file;
  EXPECT_THAT(gguf_refused("GGU"),
              HasSubstr("is truncated: the magic at byte 0 takes 4 bytes, but the file holds only 3"));
  EXPECT_THAT(gguf_refused(""), HasSubstr("is truncated"));
  file.magic = 0x47475546;
  EXPECT_THAT(gguf_refused(file.file()), HasSubstr("big-endian"));
  file.magic = 0x04034B50;
  EXPECT_THAT(gguf_refused(file.file()), HasSubstr("is not a GGUF file: it begins with 0x04034B50"));
  file.magic = 0x46554747;
  file.version = 0x03000000;
  EXPECT_THAT(gguf_refused(file.file()), HasSubstr("big-endian"));
  for (const uint32_t version : {0u, 1u, 4u}) {
    file.version = version;
    EXPECT_THAT(gguf_refused(file.file()), HasSubstr(fmt::format("is GGUF version {};", version)));
  }
}

TEST(GgufHeader, RefusesCountsThatTheFileHasNoRoomFor) {
  GgufFileBytes file;
  file.more_pairs = 1ull << 60;
  EXPECT_THAT(gguf_refused(file.file()), HasSubstr("would have 1152921504606846976 key-value pairs and 0 tensors"));
  file.more_pairs = 0;
  file.more_tensors = UINT64_MAX;
  EXPECT_THAT(gguf_refused(file.file()), HasSubstr("18446744073709551615 tensors, but only"));
  file.more_tensors = 1;
  EXPECT_THAT(gguf_refused(file.head() + std::string(32, '\0')), HasSubstr("name at byte 32 is empty"));
}

TEST(GgufHeader, EveryBeginningOfAFileIsRefused) {
  GgufFileBytes file;
  file.pair_string("general.architecture", "qwen35");
  file.pair("list", 9, GgufBytes().u32(5).u64(3).u32(1).u32(2).u32(3).text);
  file.tensor("a", {32, 2}, kQ8_0, 68, 'a');
  const std::string bytes = file.file();
  EXPECT_EQ(parse_gguf(bytes).tensors.size(), 1u);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(gguf_refused(bytes.substr(0, length)), "") << length;
  }
}

TEST(GgufHeader, RefusesBadKeys) {
  const auto with_key = [](const std::string& key) {
    GgufFileBytes file;
    file.pair_u32("first", 1);
    file.pair_u32(key, 1);
    return gguf_refused(file.file());
  };
  EXPECT_THAT(with_key(""), HasSubstr("key 2 of 2 is empty"));
  EXPECT_THAT(with_key("a\nb"), HasSubstr("key 2 of 2 is not printable ASCII"));
  EXPECT_THAT(with_key(std::string(1025, 'k')), HasSubstr("would have 1025 bytes; at most 1024 are allowed"));
  EXPECT_THAT(with_key("first"), HasSubstr("has the key first twice"));
}

TEST(GgufHeader, RefusesBadValues) {
  const auto with_value = [](uint32_t type, const std::string& value, uint64_t beyond = 0) {
    GgufFileBytes file;
    file.pair("K", type, value);
    return gguf_refused(file.head(), beyond);
  };
  EXPECT_THAT(with_value(13, std::string(8, '\0')), HasSubstr("the value of K has the unknown type 13"));
  EXPECT_THAT(with_value(7, "\2"), HasSubstr("K holds the bool 2"));
  EXPECT_THAT(with_value(9, GgufBytes().u32(13).u64(0).text), HasSubstr("the value of K has the unknown type 13"));
  EXPECT_THAT(with_value(9, GgufBytes().u32(9).u64(1).u32(4).u64(0).text), HasSubstr("K is an array of arrays"));
  EXPECT_THAT(with_value(9, GgufBytes().u32(4).u64(UINT64_MAX).text),
              HasSubstr("K would have 18446744073709551615 elements of at least 4 bytes, but only 0 bytes follow"));
  EXPECT_THAT(with_value(9, GgufBytes().u32(8).u64(2).u64(0).text), HasSubstr("K would have 2 elements"));
  EXPECT_THAT(with_value(8, GgufBytes().u64(1ull << 40).text, 1ull << 41),
              HasSubstr("would have 1099511627776 bytes; at most 67108864 are allowed"));
  EXPECT_THAT(with_value(8, GgufBytes().u64(5).text + "four"), HasSubstr("is truncated: K at byte"));
  EXPECT_THAT(with_value(9, GgufBytes().u32(0).u64(100 << 20).text, 1ull << 41),
              HasSubstr("has more than 67108864 bytes before its data"));
}

TEST(GgufHeader, RefusesBadNames) {
  const auto with_name = [](const std::string& name) {
    GgufFileBytes file;
    file.tensor(name, {1}, kF32, 4, 'a');
    return gguf_refused(file.file());
  };
  EXPECT_THAT(with_name(""), HasSubstr("the tensor's name at byte 32 is empty"));
  EXPECT_THAT(with_name("a\x1b[2J"), HasSubstr("is not printable ASCII"));
  EXPECT_THAT(with_name(std::string(64, 'n')), HasSubstr("would have 64 bytes; at most 63 are allowed"));
  GgufFileBytes file;
  file.tensor("T", {1}, kF32, 4, 'a');
  file.tensor("T", {1}, kF32, 4, 'a');
  EXPECT_THAT(gguf_refused(file.file()), HasSubstr("tensor T stands twice in the file"));
}

TEST(GgufHeader, RefusesBadShapes) {
  EXPECT_THAT(tensor_refused({}, kF32), HasSubstr("tensor T has 0 dimensions; 1 to 4 are allowed"));
  EXPECT_THAT(tensor_refused({1, 1, 1, 1, 1}, kF32), HasSubstr("tensor T has 5 dimensions"));
  EXPECT_THAT(tensor_refused({4, 0}, kF32), HasSubstr("tensor T has a dimension of 0"));
  EXPECT_THAT(tensor_refused({1ull << 32, 1ull << 31}, kF32),
              HasSubstr("tensor T has more than 9223372036854775807 el"));
  EXPECT_THAT(tensor_refused({UINT64_MAX}, kF32), HasSubstr("tensor T has more than"));
  EXPECT_THAT(tensor_refused({1ull << 62}, kF32), HasSubstr("has more than 9223372036854775807 bytes"));
  EXPECT_THAT(tensor_refused({640, 4}, kIq2s),
              HasSubstr("tensor T (IQ2_S [4, 640]) has rows of 640 elements, not whole blocks of 256"));
}

TEST(GgufHeader, RefusesTypesThatItDoesNotKnowNamingTheTensor) {
  EXPECT_THAT(tensor_refused({256}, 43), HasSubstr("tensor T has the unknown type 43"));
  EXPECT_THAT(tensor_refused({256}, UINT32_MAX), HasSubstr("tensor T has the unknown type 4294967295"));
  EXPECT_THAT(tensor_refused({256}, 4), HasSubstr("tensor T: type 4 was removed from the format"));
  EXPECT_THAT(tensor_refused({256}, 31), HasSubstr("tensor T: type 31 is a repacked form that was removed"));
  EXPECT_THAT(tensor_refused({256}, 142), HasSubstr("tensor T: type 142 is PQ2_0 of a fork"));
  EXPECT_THAT(tensor_refused({256}, 143), HasSubstr("tensor T: type 143 is PTQ1_0 of a fork"));
}

TEST(GgufHeader, KnowsEveryTypeOfTheTable) {
  for (const numeric::GgmlTraits& traits : numeric::ggml_types()) {
    GgufFileBytes file;
    const auto elements = static_cast<uint64_t>(traits.block_elements) * 3;
    const auto bytes = static_cast<uint64_t>(traits.block_bytes) * 3 * 5;
    file.tensor("T", {elements, 5}, static_cast<uint32_t>(traits.type), bytes, 'a');
    const GgufHeader header = parse_gguf(file.file());
    EXPECT_EQ(header.tensors[0].type, traits.type);
    EXPECT_EQ(header.tensors[0].bytes, bytes) << traits.name;
  }
}

TEST(GgufHeader, RefusesHolesOverlapsAndTruncation) {
  EXPECT_THAT(tensor_refused({8}, kF32, 32),
              HasSubstr("T begins at byte 32 of the data, but the header ends at byte 0"));
  const auto second_at = [](uint64_t offset) {
    GgufFileBytes file;
    file.tensor("S", {9}, kF32, 36, 'a');
    file.entry("T", {1}, kF32, offset);
    file.data.resize(256);
    return offset == 64 ? parse_gguf(file.file()).tensors[1].name : gguf_refused(file.file());
  };
  EXPECT_EQ(second_at(64), "T");
  EXPECT_THAT(second_at(36),
              HasSubstr("tensor T begins at byte 36 of the data, but S ends at byte 64 with its padding"));
  EXPECT_THAT(second_at(32), HasSubstr("T begins at byte 32"));
  EXPECT_THAT(second_at(96), HasSubstr("T begins at byte 96"));
  EXPECT_THAT(second_at(UINT64_MAX), HasSubstr("T begins at byte 18446744073709551615"));
  EXPECT_THAT(
      tensor_refused({1024}, kF32, 0, 4095),
      HasSubstr("tensor T (F32 [1024]) ends at byte 4096 of the data, but the file holds only 4095: it is trunc"));
  GgufFileBytes file;
  file.tensor("S", {1}, kF32, 4, 'a');
  file.entry("T", {1}, kF32, 32);
  EXPECT_THAT(gguf_refused(file.file()), HasSubstr("tensor T (F32 [1]) ends at byte 36 of the data"));
}

TEST(GgufHeader, RefusesQ2_0InGroupsOf128) {
  constexpr const char* kMessage = "is stored in groups of 128 weights";
  const uint64_t group_64 = 512 / 64 * 18 * 3;
  const uint64_t group_128 = 512 / 128 * 34 * 3;
  for (const bool last : {false, true}) {
    for (const bool wide : {false, true}) {
      GgufFileBytes file;
      file.tensor("T", {512, 3}, kQ2_0, wide ? group_128 : group_64, 'a');
      if (!last) file.tensor("S", {1}, kF32, 4, 'b');
      if (wide) {
        EXPECT_THAT(gguf_refused(file.file()), HasSubstr(std::string("tensor T (Q2_0 [3, 512]) ") + kMessage));
        EXPECT_THAT(last ? gguf_refused(file.file() + std::string(8, '\0')) : kMessage, HasSubstr(kMessage));
      } else {
        EXPECT_EQ(parse_gguf(file.file()).tensors[0].bytes, group_64);
      }
    }
  }
  // Another wrong size is a fault of the file, not the fork's.
  GgufFileBytes file;
  file.tensor("T", {512, 3}, kQ2_0, group_128 - 64, 'a');
  EXPECT_THAT(gguf_refused(file.file()), HasSubstr("is truncated"));
}

TEST(GgufHeader, ReadsAStringLongerThanItsWindow) {
  GgufFileBytes file;
  const std::string text(200'000, 'x');
  file.pair_string("before", "1");
  file.pair_string("long", text);
  file.pair_string("after", "2");
  const GgufHeader header = parse_gguf(file.file());
  EXPECT_EQ(header.metadata.string("long"), text);
  EXPECT_EQ(header.metadata.string("after"), "2");
}

}  // namespace
}  // namespace tandem::checkpoint
