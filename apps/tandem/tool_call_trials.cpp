#include "tool_call_trials.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <random>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/output_parser.h"
#include "text/python_json.h"

namespace tandem::app {
namespace {

using base::Json;
using text::OutputEvent;

constexpr size_t kLongestString = 20'000;
constexpr size_t kShortText = 160;  // bytes, up to which a text is cut at every place

// What a value may hold that looks like the form around it, or like JSON.
constexpr std::string_view kPieces[] = {"</parameter>",
                                        "\n</parameter>\n",
                                        "<parameter=path>",
                                        "</function>",
                                        "<function=f>",
                                        "<tool_call>",
                                        "</tool_call>",
                                        "</think>",
                                        "<think>",
                                        "<|im_end|>",
                                        "</param",
                                        "</",
                                        "<",
                                        ">",
                                        "\n",
                                        "\n\n",
                                        "\r\n",
                                        "\r",
                                        "\t",
                                        " ",
                                        "\"",
                                        "'",
                                        "\\",
                                        "\\n",
                                        "\\u0000",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "null",
                                        "true",
                                        "0",
                                        "-1.5e3",
                                        "\x01",
                                        "\x1b[31m",
                                        "\x7f",
                                        "\xF0\x9F\x9A\x80",
                                        "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB",
                                        "\xE6\x9D\xB1\xE4\xBA\xAC",
                                        "e\xCC\x81",
                                        "\xE2\x80\xA8",
                                        "\xEF\xBF\xBD",
                                        "word",
                                        "int main() { return 0; }"};

size_t after_blanks(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(" \t\r\n", at), text.size());
}

// The form has no escapes: a value can't hold a closing tag with the tag behind it that may follow there. A dot parts
// them.
std::string quotable(std::string text) {
  const auto part = [&](std::string_view closing, std::initializer_list<std::string_view> followers) {
    for (size_t at = 0; (at = text.find(closing, at)) != std::string::npos;) {
      at += closing.size();
      const std::string_view next = std::string_view(text).substr(after_blanks(text, at));
      const bool ends = std::any_of(followers.begin(), followers.end(),
                                    [&](std::string_view follower) { return next.starts_with(follower); });
      if (ends) text.insert(at, ".");
    }
  };
  part("</parameter>", {"<parameter=", "</function>", "</tool_call>"});
  part("</function>", {"</tool_call>"});
  return text;
}

struct Call {
  std::string name;
  Json arguments = Json::object();
};

// An answer with calls, and what it must be read as.
struct Trial {
  Json tools = Json::array();
  std::string content;
  std::vector<Call> calls;
  std::string text;
};

class TrialMaker {
 public:
  explicit TrialMaker(uint64_t seed) : random_(seed) {}

  Trial trial() {
    Trial out;
    out.content = below(3) == 0 ? "Let me look." : "";
    out.text = out.content.empty() ? "" : out.content + "\n\n";
    for (uint64_t i = 1 + (below(4) == 0 ? below(3) : 0); i > 0; --i) {
      add_call(out);
      out.text += i > 1 ? "\n" : "";
    }
    return out;
  }

  std::string mutilated(std::string text) {
    for (uint64_t i = 1 + below(4); i > 0 && !text.empty(); --i) {
      const size_t at = below(text.size());
      const size_t length = 1 + below(std::min<size_t>(text.size() - at, 40));
      switch (below(5)) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, text.substr(at, length));
          break;
        case 2:
          text.resize(at);
          break;
        case 3:
          text.insert(at, piece());
          break;
        default:
          text[at] = static_cast<char>(below(256));
      }
    }
    return text;
  }

 private:
  uint64_t below(uint64_t bound) { return random_() % bound; }
  std::string_view piece() { return kPieces[below(std::size(kPieces))]; }

  std::string string() {
    const uint64_t kind = below(100);
    const size_t bytes = kind < 60 ? below(40) : kind < 98 ? below(600) : below(kLongestString);
    std::string out;
    while (out.size() < bytes) out += piece();
    return quotable(std::move(out));
  }

  std::string name(const Json& taken) {
    static constexpr std::string_view kNames[] = {"path", "content", "old string", "a-b.c", "na\"me", "\xE6\x9D\xB1"};
    std::string out(kNames[below(std::size(kNames))]);
    while (taken.contains(out)) out += std::to_string(below(10));
    return out;
  }

  Json number() {
    if (below(2) == 0) return static_cast<int64_t>(random_()) >> below(64);
    return static_cast<double>(static_cast<int64_t>(random_())) / static_cast<double>(1 + below(1'000'000'000));
  }

  Json value(int depth) {
    switch (below(depth > 2 ? 5 : 7)) {
      case 0:
        return nullptr;
      case 1:
        return below(2) == 0;
      case 2:
        return number();
      case 3:
      case 4:
        return string();
      case 5: {
        Json list = Json::array();
        for (uint64_t i = below(4); i > 0; --i) list.push_back(value(depth + 1));
        return list;
      }
      default: {
        Json object = Json::object();
        for (uint64_t i = below(4); i > 0; --i) object[quotable(name(object))] = value(depth + 1);
        return object;
      }
    }
  }

  Json value_of_type(const std::string& type) {
    if (type == "string") return string();
    for (;;) {
      Json made = type == "integer" || type == "number" ? number() : value(0);
      const bool fits = (type == "integer" && made.is_number_integer()) || (type == "number" && made.is_number()) ||
                        (type == "boolean" && made.is_boolean()) || (type == "array" && made.is_array()) ||
                        (type == "object" && made.is_object()) || (type == "null" && made.is_null());
      if (fits) return made;
    }
  }

  // A property's schema and a value that it admits and that the form can tell from all others it admits.
  std::pair<Json, Json> property() {
    static constexpr const char* kTypes[] = {"string", "integer", "number", "boolean", "array", "object"};
    const std::string type = kTypes[below(std::size(kTypes))];
    switch (below(6)) {
      case 0:
        return {Json::object(), string()};  // nothing is known of it: a string
      case 1: {
        std::string text = string();
        if (text.find("null") != std::string::npos) text = "nothing";
        return {{{"type", {"string", "null"}}}, below(4) == 0 ? Json(nullptr) : Json(text)};
      }
      case 2:
        return {{{"anyOf", {{{"type", type}}, {{"type", type}, {"description", "x"}}}}}, value_of_type(type)};
      default:
        return {{{"type", type}, {"description", string()}}, value_of_type(type)};
    }
  }

  void add_call(Trial& trial) {
    Call call{.name = fmt::format("tool_{}", trial.tools.size())};
    Json properties = Json::object();
    trial.text += "<tool_call>\n<function=" + call.name + ">\n";
    for (uint64_t i = below(5); i > 0; --i) {
      const std::string key = name(properties);
      auto [schema, argument] = property();
      trial.text += "<parameter=" + key + ">\n";
      trial.text += argument.is_string() ? argument.get<std::string>() : text::python_json(argument);
      trial.text += "\n</parameter>\n";
      properties[key] = std::move(schema);
      call.arguments[key] = std::move(argument);
    }
    trial.text += "</function>\n</tool_call>";
    trial.tools.push_back(
        {{"type", "function"},
         {"function",
          {{"name", call.name}, {"parameters", {{"type", "object"}, {"properties", std::move(properties)}}}}}});
    trial.calls.push_back(std::move(call));
  }

  std::mt19937_64 random_;
};

// What a parser made of a text that came in pieces.
struct Reading {
  std::string content;
  std::vector<std::string> names;
  std::vector<std::string> arguments;  // as they were streamed
  std::vector<Json> parsed;            // of the complete calls
  bool operator==(const Reading&) const = default;
};

Reading read(const Json& tools, std::string_view text, size_t piece_bytes, size_t first_bytes) {
  text::OutputParser parser(tools, false);
  Reading out;
  const auto take = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      if (event.kind == OutputEvent::Kind::kContent) out.content += event.text;
      if (event.kind == OutputEvent::Kind::kToolCallBegin) {
        out.names.push_back(event.text);
        out.arguments.emplace_back();
      }
      if (event.kind == OutputEvent::Kind::kToolCallArguments) out.arguments.back() += event.text;
    }
  };
  take(parser.push(text.substr(0, first_bytes)));
  for (size_t at = std::min(first_bytes, text.size()); at < text.size(); at += piece_bytes) {
    take(parser.push(text.substr(at, piece_bytes)));
  }
  take(parser.finish());
  for (const text::ToolCall& call : parser.tool_calls()) out.parsed.push_back(call.arguments);
  return out;
}

// Nothing, or what is wrong with calls that came from any text at all.
std::string fault_of_calls(const Reading& reading) {
  if (reading.parsed.size() != reading.names.size()) return "a call is not complete";
  for (size_t i = 0; i < reading.names.size(); ++i) {
    if (reading.names[i].empty()) return "a call has no name";
    if (!Json::accept(reading.arguments[i])) return "arguments are no JSON: " + reading.arguments[i];
    if (Json::parse(reading.arguments[i]) != reading.parsed[i]) return "streamed arguments differ from the whole ones";
  }
  return {};
}

std::string fault_of_trial(const Trial& trial, const Reading& reading) {
  if (std::string fault = fault_of_calls(reading); !fault.empty()) return fault;
  if (reading.content != trial.content) return "the content became: " + reading.content;
  if (reading.names.size() != trial.calls.size()) {
    return fmt::format("{} calls became {}", trial.calls.size(), reading.names.size());
  }
  for (size_t i = 0; i < trial.calls.size(); ++i) {
    if (reading.names[i] != trial.calls[i].name) return "a name became: " + reading.names[i];
    if (reading.parsed[i] != trial.calls[i].arguments) {
      return fmt::format("arguments became {} instead of {}", reading.arguments[i],
                         text::python_json(trial.calls[i].arguments));
    }
  }
  return {};
}

}  // namespace

ToolCallTrials run_tool_call_trials(uint64_t seed, int64_t calls, int64_t mutilated) {
  TrialMaker maker(seed);
  ToolCallTrials out;
  const auto note = [&](const std::string& fault, int64_t count, const std::string& text) {
    if (fault.empty()) return;
    out.malformed += count;
    if (out.first_fault.empty()) out.first_fault = fmt::format("{} (seed {}, text {})", fault, seed, text);
  };
  while (out.calls < calls) {
    const Trial trial = maker.trial();
    const auto count = static_cast<int64_t>(trial.calls.size());
    const Reading whole = read(trial.tools, trial.text, trial.text.size(), trial.text.size());
    std::string fault = fault_of_trial(trial, whole);
    if (fault.empty() && read(trial.tools, trial.text, 1, 0) != whole) fault = "byte by byte it is read otherwise";
    for (size_t cut = 1; fault.empty() && trial.text.size() <= kShortText && cut < trial.text.size(); ++cut) {
      ++out.splits;
      if (read(trial.tools, trial.text, trial.text.size(), cut) != whole) fault = fmt::format("cut at {}", cut);
    }
    note(fault, count, trial.text);
    out.calls += count;
  }
  for (; out.mutilated < mutilated; ++out.mutilated) {
    const Trial trial = maker.trial();
    const std::string text = maker.mutilated(trial.text);
    const Reading whole = read(trial.tools, text, text.size() + 1, text.size());
    std::string fault = fault_of_calls(whole);
    if (fault.empty() && read(trial.tools, text, 1, 0) != whole) fault = "byte by byte it is read otherwise";
    note(fault, 1, text);
  }
  return out;
}

}  // namespace tandem::app
