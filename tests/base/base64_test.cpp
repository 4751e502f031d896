#include "base/base64.h"

#include <gtest/gtest.h>
#include <random>

namespace tandem::base {
namespace {

TEST(Base64, EncodesTheStandardsExamples) {
  EXPECT_EQ(base64_encode(""), "");
  EXPECT_EQ(base64_encode("f"), "Zg==");
  EXPECT_EQ(base64_encode("fo"), "Zm8=");
  EXPECT_EQ(base64_encode("foo"), "Zm9v");
  EXPECT_EQ(base64_encode("foob"), "Zm9vYg==");
  EXPECT_EQ(base64_encode("fooba"), "Zm9vYmE=");
  EXPECT_EQ(base64_encode("foobar"), "Zm9vYmFy");
}

TEST(Base64, GivesAnyBytesBack) {
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_EQ(base64_decode(base64_encode(bytes)), bytes) << "round " << i;
  }
}

TEST(Base64, RefusesWhatIsNotBase64) {
  for (const char* text :
       {"Z", "Zg", "Zg=", "Zg===", "Z===", "====", "Zg==Zg==", "Zm 9v", "Zm9v\n", "Zm9_", "Zh==", "Zm9="}) {
    EXPECT_FALSE(base64_decode(text)) << text;
  }
}

}  // namespace
}  // namespace tandem::base
