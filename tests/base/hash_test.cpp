#include "base/hash.h"

#include <gtest/gtest.h>
#include <string_view>

namespace tandem::base {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Sha256, MatchesThePublishedVector) {
  Sha256 hash;
  hash.update(bytes("a"));
  hash.update(bytes("bc"));
  EXPECT_EQ(hash.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Xxh3, MatchesThePublishedVectorWholeAndInPieces) {
  EXPECT_EQ(xxh3_128_hex({}), "99aa06d3014798d86001c324468d497f");
  Xxh3 hash;
  hash.update(bytes("tan"));
  hash.update(bytes("dem"));
  EXPECT_EQ(hash.hex(), xxh3_128_hex(bytes("tandem")));
}

}  // namespace
}  // namespace tandem::base
