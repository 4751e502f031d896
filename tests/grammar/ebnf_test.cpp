#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/grammar/support.h"

namespace tandem::grammar {
namespace {

struct EbnfCase {
  const char* grammar;
  std::vector<std::string> taken;
  std::vector<std::string> refused;
};

TEST(Ebnf, TakesWhatTheRulesSay) {
  const EbnfCase cases[] = {
      {R"(root ::= "yes" | "no")", {"yes", "no"}, {"", "ye", "yesno"}},
      {"# arithmetic\nroot ::= term (op term)*   # left to right\nterm ::= [0-9]+ | \"(\" root \")\"\nop ::= [-+*/]\n",
       {"1", "1+22", "(1-2)*3", "((4))"},
       {"", "1+", "(1", "1 + 2", "1)"}},
      {R"(root ::= [^"\x41\]]+)", {"bc", "ä", "x"}, {"A", "]", "\"", ""}},
      {R"(root ::= "a"{3})", {"aaa"}, {"aa", "aaaa"}},
      {R"(root ::= "ab"{2,}"!")", {"abab!", "ababab!"}, {"ab!", "abab"}},
      {R"(root ::= ("a" | "bb"){1,3})", {"a", "bb", "abba", "bbbbbb", "abb"}, {"", "aaaa", "b"}},
      {R"(root ::= "a"{0,1000})", {"", "a", std::string(1000, 'a')}, {std::string(1001, 'a')}},
      {R"(root ::= "a"{2}{500})", {std::string(1000, 'a')}, {std::string(999, 'a')}},
      {R"(root ::= ("a"?){3} "b")", {"b", "ab", "aab", "aaab"}, {"aaaab"}},
      {"root ::= \"x\" |\n  \"y\"\n  | \"z\"\n", {"x", "y", "z"}, {"xy"}},
      {R"(root ::= "\t\n\"\u00e4\U0001F600")", {"\t\n\"ä😀"}, {"\t\n\"ä"}},
      {"root ::= .", {"a", "😀", "\n"}, {"", "ab", "\xF0\x9F"}},
      {R"(root ::= list  list ::= "[" (list ("," list)*)? "]")", {"[]", "[[],[[]]]"}, {"[", "[,]"}},
      {R"(root ::= "a" root "b" | "")", {"", "ab", "aaabbb"}, {"a", "abb", "ba"}},
      {R"(root ::= ("a" | "aa")* "b")", {"b", "aaaaaaaab"}, {"a", "ba"}},
      {R"(root ::= "a" | dead  dead ::= "b" dead)", {"a"}, {"b", "bb"}},
      {R"(root ::= x* "c"  x ::= ("a"*)* | "b"?)", {"c", "aabac"}, {"d"}},
  };
  for (const EbnfCase& one : cases) {
    SCOPED_TRACE(one.grammar);
    const auto grammar = compile_ebnf(one.grammar);
    for (const std::string& text : one.taken) EXPECT_TRUE(takes(grammar, text)) << text;
    for (const std::string& text : one.refused) EXPECT_FALSE(takes(grammar, text)) << text;
  }
}

TEST(Ebnf, FaultsAreNamedWithTheirLine) {
  const auto said = [](std::string_view text) { return refusal([&] { compile_ebnf(text); }); };
  using testing::HasSubstr;
  EXPECT_THAT(said(""), HasSubstr("grammar: there is no rule root"));
  EXPECT_THAT(said("root ::= \"a\"\n\nother ::= nowhere"), HasSubstr("line 3: there is no rule nowhere"));
  EXPECT_THAT(said("root ::= \"a\"\nroot ::= \"b\""), HasSubstr("line 2: rule root is defined twice"));
  EXPECT_THAT(said("root = \"a\""), HasSubstr("line 1: expected ::="));
  EXPECT_THAT(said("root ::= (\"a\""), HasSubstr("expected )"));
  EXPECT_THAT(said("root ::= \"a"), HasSubstr("does not end"));
  EXPECT_THAT(said("root ::= [b-a]"), HasSubstr("out of order"));
  EXPECT_THAT(said("root ::= \"\\q\""), HasSubstr("an unknown escape"));
  EXPECT_THAT(said("root ::= root \"a\" | \"b\""), HasSubstr("rule root leads back to itself"));
  EXPECT_THAT(said("root ::= a  a ::= b?  root \"x\" | \"y\"\nb ::= \"c\""), HasSubstr("leads back to itself"));
  EXPECT_THAT(said("root ::= \"a\" root"), HasSubstr("nothing satisfies it"));
  EXPECT_THAT(said("root ::= \"a\"{5,2}"), HasSubstr("m above n"));
  EXPECT_THAT(said("root ::= * \"a\""), HasSubstr("unexpected *"));
  EXPECT_THAT(said("root ::= \"a\" )"), HasSubstr("unexpected )"));
  EXPECT_THAT(said("root ::= (\"a\"?){1000}"), HasSubstr("what may be empty"));
  EXPECT_THAT(said("root ::= \"\xff\""), HasSubstr("is not UTF-8"));
}

}  // namespace
}  // namespace tandem::grammar
