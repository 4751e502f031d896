#include "text/python_json.h"

#include <gtest/gtest.h>

namespace tandem::text {
namespace {

using base::Json;

TEST(PythonJson, NumbersPrintAsPythonPrintsThem) {
  const std::pair<const char*, const char*> numbers[] = {
      {"0", "0"},
      {"-7", "-7"},
      {"18446744073709551615", "18446744073709551615"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"-0.0", "-0.0"},
      {"0.0", "0.0"},
      {"1.0", "1.0"},
      {"0.1", "0.1"},
      {"100000.0", "100000.0"},
      {"3.141592653589793", "3.141592653589793"},
      {"1e15", "1000000000000000.0"},
      {"1234567890123456.0", "1234567890123456.0"},
      {"1e16", "1e+16"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"1e22", "1e+22"},
      {"1.5e300", "1.5e+300"},
      {"5e-324", "5e-324"},
      {"0.0001", "0.0001"},
      {"0.00012", "0.00012"},
      {"0.00001", "1e-05"},
      {"-3.25e-7", "-3.25e-07"},
  };
  for (const auto& [json, printed] : numbers) EXPECT_EQ(python_json(Json::parse(json)), printed);
}

TEST(PythonJson, StringsEscapeControlsAndNothingElse) {
  EXPECT_EQ(python_json("a\"b\\c/\n\r\t\b\f\x01\x1F\x7F<&>'\u00e9\u2028"),
            "\"a\\\"b\\\\c/\\n\\r\\t\\b\\f\\u0001\\u001f\x7F<&>'\u00e9\u2028\"");
}

TEST(PythonJson, ContainersKeepTheirOrderAndHaveBlanksAfterSeparators) {
  const Json value = Json::parse(R"({"z":[1,true,null,"x",[],{}],"a":{"b":false},"":1.5})");
  EXPECT_EQ(python_json(value), R"({"z": [1, true, null, "x", [], {}], "a": {"b": false}, "": 1.5})");
}

TEST(PythonJson, EscapingPieceByPieceGivesTheSameText) {
  const std::string text = "\u00fcber \"quoted\"\n\x02\U0001F680";
  std::string whole, pieces;
  append_json_escaped(whole, text);
  for (const char c : text) append_json_escaped(pieces, std::string_view(&c, 1));
  EXPECT_EQ(whole, pieces);
}

}  // namespace
}  // namespace tandem::text
