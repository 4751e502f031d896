// Any bytes as a model's answer, cut anywhere. The first byte: reasoning or not, and the size of the cuts.
#include "base/json.h"
#include "demo_model.h"
#include "text/output_parser.h"
#include "text/python_json.h"
#include "text/utf8.h"

using namespace tandem;

namespace {

struct Answer {
  std::string texts[2];                // reasoning, content
  std::vector<std::string> arguments;  // by call
  bool operator==(const Answer&) const = default;
};

const base::Json& tools() {
  static const base::Json kTools = base::Json::parse(R"([{"name": "f", "parameters": {"properties": {
    "s": {"type": "string"}, "n": {"type": ["integer", "null"]}, "o": {"$ref": "#/$defs/O"}},
    "$defs": {"O": {"type": "object"}}}}])");
  return kTools;
}

Answer parse(std::string_view text, bool thinking, size_t cut) {
  text::OutputParser parser(tools(), thinking);
  Answer answer;
  const auto add = [&answer](const std::vector<text::OutputEvent>& events) {
    for (const text::OutputEvent& event : events) {
      fuzz::require(text::utf8_valid_prefix(event.text, 0) == event.text.size());
      switch (event.kind) {
        case text::OutputEvent::Kind::kReasoning:
          answer.texts[0] += event.text;
          break;
        case text::OutputEvent::Kind::kContent:
          answer.texts[1] += event.text;
          break;
        case text::OutputEvent::Kind::kToolCallBegin:
          answer.arguments.emplace_back();
          break;
        case text::OutputEvent::Kind::kToolCallArguments:
          answer.arguments.back() += event.text;
          break;
        case text::OutputEvent::Kind::kToolCallEnd:
          break;
      }
    }
  };
  for (size_t at = 0; at < text.size(); at += cut) add(parser.push(text.substr(at, cut)));
  add(parser.finish());
  fuzz::require(parser.tool_calls().size() == answer.arguments.size());
  for (size_t i = 0; i < answer.arguments.size(); ++i) {
    fuzz::require(base::Json::accept(answer.arguments[i]));
    fuzz::require(answer.arguments[i] == text::python_json(parser.tool_calls()[i].arguments));
  }
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool thinking = (data[0] & 1) != 0;
  const size_t cut = 1 + (data[0] >> 1) % 32;
  fuzz::require(parse(text, thinking, cut) == parse(text, thinking, text.size() + 1));
  return 0;
}
