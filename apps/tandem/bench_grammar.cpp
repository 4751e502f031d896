#include "bench_grammar.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bench_report.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

namespace tandem::app {

namespace {

using base::Json;

constexpr size_t kVocabularySize = 248'320;
constexpr int kToolCount = 24;
constexpr int kAnswerCalls = 12;  // of an answer
constexpr int kValueWords = 40;   // of a long string

constexpr std::string_view kParts[] = {"a",   "re",  "in", "on",  "st", "er", "con", "ing", "pro", "de", "tion", "al",
                                       "com", "ent", "ex", "ver", "s",  "ed", "un",  "ti",  "mo",  "ly", "par",  "e"};

template <typename List>
std::string_view pick(const List& list, std::mt19937& random) {
  return list[random() % std::size(list)];
}

std::string wide_character(std::mt19937& random) {
  const auto code = 0x4E00 + static_cast<unsigned>(random() % 0x5000);
  return {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

// One token of the kinds that large vocabularies hold, about six bytes long on average.
std::string made_up_token(std::mt19937& random) {
  constexpr std::string_view kMarks[] = {"\"", "\\", "\n", "\":", "\",", "{",  "}",  "[", "]", ",",   ":",   "</", ">",
                                         "\t", "(",  ")",  ";",   "//",  "--", "''", "=", "/", "\"}", "\\n", "_",  "."};
  const auto kind = random() % 100;
  std::string token;
  if (kind < 70) {
    if (random() % 2 == 0) token = " ";
    const auto parts = 1 + random() % 4;
    for (size_t i = 0; i < parts; ++i) token += pick(kParts, random);
    if (random() % 4 == 0) token[0] = static_cast<char>(token[0] == ' ' ? ' ' : token[0] - 'a' + 'A');
  } else if (kind < 85) {
    const auto characters = 1 + random() % 3;
    for (size_t i = 0; i < characters; ++i) token += wide_character(random);
    if (random() % 10 == 0) token.pop_back();
  } else if (kind < 97) {
    const auto marks = 1 + random() % 3;
    for (size_t i = 0; i < marks; ++i) token += pick(kMarks, random);
    if (random() % 2 == 0) token += pick(kParts, random);
  } else {
    token = (random() % 2 == 0 ? "\n" : "") + std::string(1 + random() % 64, ' ');
  }
  return token;
}

std::vector<std::string> made_up_tokens() {
  std::mt19937 random(1);
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* word : {"<tool_call>", "</tool_call>", "<function", "</function>", "<parameter", "</parameter>"}) {
    tokens.emplace_back(word);
  }
  std::vector<std::string> made;
  while (made.size() < 2 * kVocabularySize) {
    made.push_back(made_up_token(random));
    if (random() % 2 == 0) made.back() += pick(kParts, random);
    if (random() % 8 == 0) made.back() += std::to_string(random() % 1000);
  }
  std::sort(made.begin(), made.end());
  made.erase(std::unique(made.begin(), made.end()), made.end());
  std::shuffle(made.begin(), made.end(), random);
  made.resize(kVocabularySize - tokens.size());
  tokens.insert(tokens.end(), made.begin(), made.end());
  return tokens;
}

// Tools as agents send them.
grammar::ToolCallOptions made_up_tools() {
  const Json parameters = base::parse_json(R"({"type": "object", "properties": {
      "path": {"type": "string", "description": "the file"}, "text": {"type": "string", "minLength": 1, "maxLength": 524288},
      "mode": {"type": "string", "enum": ["replace", "insert", "delete", "append"]},
      "offset": {"type": "integer", "minimum": 0, "maximum": 9007199254740991},
      "timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 600000}, "url": {"type": "string", "format": "uri"},
      "day": {"type": "string", "format": "date"}, "recursive": {"type": "boolean"},
      "items": {"type": "array", "maxItems": 32, "items": {"type": "object", "properties": {
        "title": {"type": "string", "maxLength": 200}, "line": {"type": "integer"},
        "status": {"anyOf": [{"type": "string", "enum": ["open", "done"]}, {"type": "null"}]}},
        "required": ["title", "line"], "additionalProperties": false}},
      "metadata": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}}},
      "required": ["path", "text"], "additionalProperties": false})",
                                           "the bench's tools");
  grammar::ToolCallOptions options;
  options.mode = grammar::ToolCallOptions::Mode::kRequired;
  for (int i = 0; i < kToolCount; ++i) options.tools.push_back({"tool_" + std::to_string(i), parameters, true});
  return options;
}

std::string made_up_words(std::mt19937& random, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    for (size_t parts = 1 + random() % 4; parts > 0; --parts) text += pick(kParts, random);
    text += i % 9 == 8 ? ",\n" : " ";
  }
  return text;
}

std::string made_up_answer() {
  std::mt19937 random(2);
  std::string answer;
  for (int i = 0; i < kAnswerCalls; ++i) {
    const auto parameter = [](const std::string& name, const std::string& value) {
      return fmt::format("<parameter={}>\n{}\n</parameter>\n", name, value);
    };
    Json items = Json::array();
    for (int item = 0; item < 4; ++item) items.push_back({{"title", made_up_words(random, 5)}, {"line", item * 17}});
    answer += (i == 0 ? "" : "\n") + ("<tool_call>\n<function=tool_" + std::to_string(random() % kToolCount)) + ">\n";
    answer +=
        parameter("path", "/home/" + made_up_words(random, 2)) + parameter("text", made_up_words(random, kValueWords));
    answer += parameter("offset", std::to_string(random() % 10'000)) + parameter("recursive", "true");
    answer += parameter("items", items.dump(2)) + parameter("metadata", R"({"note": "a", "n": [1, 2.5]})");
    answer += "</function>\n</tool_call>";
  }
  return answer;
}

// The answer in the longest tokens that fit.
std::vector<int32_t> tokenised(std::string_view text, const grammar::Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  for (int32_t token = 0; token < vocabulary.size(); ++token) sorted.emplace_back(vocabulary.bytes(token), token);
  std::sort(sorted.begin(), sorted.end());
  std::vector<int32_t> tokens;
  while (!text.empty()) {
    for (size_t length = std::min(text.size(), vocabulary.longest()); length > 0; --length) {
      const auto found = std::lower_bound(sorted.begin(), sorted.end(), std::pair(text.substr(0, length), 0));
      if (found == sorted.end() || found->first != text.substr(0, length)) continue;
      tokens.push_back(found->second);
      text.remove_prefix(length);
      break;
    }
  }
  return tokens;
}

}  // namespace

void measure_grammar(int rounds, Json& raw, Json& figures) {
  using Clock = std::chrono::steady_clock;
  const std::vector<std::string> spelled = made_up_tokens();
  std::shared_ptr<const grammar::Vocabulary> vocabulary;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    vocabulary = std::make_shared<const grammar::Vocabulary>(spelled);
    raw["vocabulary"]["build_s"].push_back(seconds_since(begin));
  }
  const grammar::ToolCallOptions tools = made_up_tools();
  const std::vector<int32_t> answer = tokenised(made_up_answer(), *vocabulary);
  std::vector<uint64_t> mask(vocabulary->mask_words());
  std::vector<double> all, slowest, compile;
  for (int round = -1; round < rounds; ++round) {  // the first is not counted
    const auto begin = Clock::now();
    const auto grammar = grammar::compile_tool_calls(tools);
    const double compiled = seconds_since(begin);
    grammar::Matcher matcher(grammar, vocabulary);
    std::vector<double> times;
    for (const int32_t token : answer) {
      const auto before = Clock::now();
      matcher.mask(mask);
      times.push_back(seconds_since(before));
      if (!matcher.accept(token)) base::internal_error("bench", "the grammar refuses the bench's answer");
    }
    if (round < 0) continue;
    compile.push_back(compiled);
    slowest.push_back(*std::max_element(times.begin(), times.end()));
    all.insert(all.end(), times.begin(), times.end());
  }
  raw["grammar"] = {{"compile_s", compile}, {"tools", kToolCount}};
  raw["mask"] = {{"tokens", answer.size()},
                 {"vocabulary", vocabulary->size()},
                 {"median_s", median(all)},
                 {"p99_s", percentile(all, 0.99)},
                 {"first_visit_s", slowest}};
  figures["vocabulary.build_ms"] = median(raw["vocabulary"]["build_s"].get<std::vector<double>>()) * 1e3;
  figures["grammar.compile_ms"] = median(compile) * 1e3;
  figures["mask.median_us"] = median(all) * 1e6;
  figures["mask.p99_us"] = percentile(all, 0.99) * 1e6;
  figures["mask.first_visit_ms"] = median(slowest) * 1e3;
}

}  // namespace tandem::app
