#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include "engine/request.h"

namespace tandem::engine {
namespace {

struct Streamed {
  std::string text;
  std::optional<std::string> matched;
};

// The text passed on when `text` comes in pieces of `piece` bytes, up to a match.
Streamed stream(const std::vector<std::string>& strings, const std::string& text, size_t piece) {
  StopStrings stop(strings);
  Streamed result;
  for (size_t at = 0; at < text.size() && !stop.matched(); at += piece)
    result.text += stop.push(text.substr(at, piece));
  if (!stop.matched()) result.text += stop.flush();
  result.matched = stop.matched();
  return result;
}

TEST(StopStrings, EndTheTextBeforeThemselvesAtAnySplit) {
  for (size_t piece = 1; piece < 20; ++piece) {
    const auto result = stream({"\n\nUser:"}, "Hello\n\nUs\n\nUser: next", piece);
    EXPECT_EQ(result.text, "Hello\n\nUs") << piece;
    EXPECT_EQ(result.matched, "\n\nUser:") << piece;
  }
}

TEST(StopStrings, ComeOutWhenTheTextEndsInTheMiddleOfOne) {
  for (size_t piece = 1; piece < 10; ++piece) {
    const auto result = stream({"STOP"}, "a STO", piece);
    EXPECT_EQ(result.text, "a STO");
    EXPECT_FALSE(result.matched);
  }
}

TEST(StopStrings, OfOneTokenHoldNothingElseBack) {
  StopStrings stop({"###"});
  EXPECT_EQ(stop.push("ab#"), "ab");
  EXPECT_EQ(stop.push("c"), "#c");
  EXPECT_EQ(stop.push("##"), "");
  EXPECT_EQ(stop.push("#x"), "");
  EXPECT_EQ(stop.matched(), "###");
}

TEST(StopStrings, TheOneThatCompletesFirstWinsAtAnySplit) {
  for (size_t piece = 1; piece < 8; ++piece) {
    const auto inner = stream({"xabz", "ab"}, "--xabz--", piece);
    EXPECT_EQ(inner.text, "--x") << piece;
    EXPECT_EQ(inner.matched, "ab") << piece;
    const auto together = stream({"b", "ab"}, "--ab--", piece);
    EXPECT_EQ(together.text, "--") << piece;
    EXPECT_EQ(together.matched, "ab") << piece;
  }
}

TEST(StopStrings, FindAnOccurrenceThatOverlapsAFailedOne) {
  for (size_t piece = 1; piece < 8; ++piece) EXPECT_EQ(stream({"aab"}, "aaab!", piece).text, "a") << piece;
}

TEST(StopStrings, WithoutAnyTextPassesThrough) {
  StopStrings stop({});
  EXPECT_EQ(stop.push("anything"), "anything");
  EXPECT_EQ(stop.flush(), "");
}

TEST(StopStrings, RefusesEmptyTooLongAndTooMany) {
  EXPECT_THROW(StopStrings({""}), base::Error);
  EXPECT_THROW(StopStrings({std::string(kMaxStopBytes + 1, 'x')}), base::Error);
  EXPECT_THROW(StopStrings(std::vector<std::string>(kMaxStopStrings + 1, "x")), base::Error);
  EXPECT_NO_THROW(StopStrings(std::vector<std::string>(kMaxStopStrings, std::string(kMaxStopBytes, 'x'))));
}

}  // namespace
}  // namespace tandem::engine
