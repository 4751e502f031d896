#include "text/template_wording.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "text/jinja_lexer.h"

namespace tandem::text {

namespace {

using Kind = JinjaToken::Kind;
using Tokens = std::vector<JinjaToken>;

constexpr size_t kMaxTemplateBytes = 1 << 20;

bool is(const Tokens& tokens, size_t at, Kind kind, std::string_view text) {
  return at < tokens.size() && tokens[at].kind == kind && tokens[at].text == text;
}

bool is_string(const Tokens& tokens, size_t at) {
  return at < tokens.size() && tokens[at].kind == Kind::kString;
}

size_t find_string_with(const Tokens& tokens, std::string_view part, size_t from) {
  for (size_t at = from; at < tokens.size(); ++at) {
    if (is_string(tokens, at) && tokens[at].text.find(part) != std::string::npos) return at;
  }
  return tokens.size();
}

// What is printed after the literal at `at` without a condition or a variable between: joined by ~ or +, or the only
// thing in a {{ }} of its own. Gives the place of the next literal.
std::optional<size_t> next_joined(const Tokens& tokens, size_t at) {
  const bool joined = is(tokens, at + 1, Kind::kSymbol, "~") || is(tokens, at + 1, Kind::kSymbol, "+");
  if (joined && is_string(tokens, at + 2)) return at + 2;
  const bool printed = is(tokens, at + 1, Kind::kClose, "}}") && is(tokens, at + 2, Kind::kOpen, "{{");
  if (printed && is_string(tokens, at + 3)) return at + 3;
  return std::nullopt;
}

std::string read_tools_head(const Tokens& tokens, const std::string& source) {
  const size_t at = find_string_with(tokens, "<tools>", 0);
  if (at == tokens.size()) base::bad_input(source, "has no string with \"<tools>\": the tools block is not found");
  const std::string& text = tokens[at].text;
  const size_t heading = text.find("# Tools");
  if (heading == std::string::npos || !text.ends_with("<tools>")) {
    base::bad_input(source, "the string with \"<tools>\" must go from \"# Tools\" to \"<tools>\"");
  }
  return text.substr(heading);
}

// Each tool is printed as "\n" and tojson without arguments.
void check_tool_line(const Tokens& tokens, const std::string& source) {
  size_t at = 0;
  while (at < tokens.size() && !is(tokens, at, Kind::kName, "tojson")) ++at;
  if (at == tokens.size()) base::bad_input(source, "prints no tool with tojson");
  if (is(tokens, at + 1, Kind::kSymbol, "(")) base::bad_input(source, "gives arguments to the tools' tojson");
  const auto before = std::find_if(tokens.rend() - static_cast<ptrdiff_t>(at), tokens.rend(),
                                   [](const JinjaToken& token) { return token.kind == Kind::kString; });
  if (before == tokens.rend() || before->text != "\n") {
    base::bad_input(source, "does not print a tool on a line of its own (\"\\n\" before tojson)");
  }
}

std::string read_tools_tail(const Tokens& tokens, const std::string& source) {
  size_t at = find_string_with(tokens, "\n</tools>", 0);
  if (at == tokens.size() || !tokens[at].text.starts_with("\n</tools>")) {
    base::bad_input(source, "has no string that begins with a newline and \"</tools>\"");
  }
  std::string tail = tokens[at].text;
  while (const auto next = next_joined(tokens, at)) tail += tokens[at = *next].text;
  if (const size_t end = tail.find("<|im_end|>"); end != std::string::npos) tail.resize(end);
  for (const char* part : {"<tool_call>\n<function=", "</parameter>\n</function>\n</tool_call>"}) {
    if (tail.find(part) == std::string::npos) {
      base::bad_input(source, "the tools block does not show a call as <tool_call>, <function=…>, <parameter=…>");
    }
  }
  return tail;
}

void check_markers(const Tokens& tokens, const std::string& source) {
  for (const char* marker : {"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_response>", "</tool_response>",
                             "<tool_call>", "<function=", "<parameter="}) {
    if (find_string_with(tokens, marker, 0) == tokens.size()) {
      base::bad_input(source, "is no chat template of the Qwen3.8 family: it never prints {}", marker);
    }
  }
}

std::string read_effort(const Tokens& tokens, std::string_view effort) {
  const std::string beginning = "Reasoning effort is set to " + std::string(effort) + ".";
  for (const JinjaToken& token : tokens) {
    if (token.kind == Kind::kString && token.text.starts_with(beginning)) return token.text;
  }
  return {};
}

// True where the loop that prints the messages trims a message's content before it looks at the role.
bool trims_in_loop(const Tokens& tokens) {
  size_t loop = tokens.size();
  for (size_t at = 0; at + 4 < tokens.size(); ++at) {
    if (is(tokens, at, Kind::kName, "for") && is(tokens, at + 1, Kind::kName, "message") &&
        is(tokens, at + 2, Kind::kName, "in") && is(tokens, at + 3, Kind::kName, "messages") &&
        is(tokens, at + 4, Kind::kClose, "%}")) {
      loop = at;
    }
  }
  for (size_t at = loop; at + 1 < tokens.size() && !is(tokens, at, Kind::kName, "if"); ++at) {
    if (is(tokens, at, Kind::kSymbol, "|") && is(tokens, at + 1, Kind::kName, "trim")) return true;
  }
  return false;
}

bool excludes_tool_responses(const Tokens& tokens) {
  for (size_t at = 0; at + 2 < tokens.size(); ++at) {
    if (is(tokens, at, Kind::kName, "startswith") && is(tokens, at + 1, Kind::kSymbol, "(") &&
        is(tokens, at + 2, Kind::kString, "<tool_response>")) {
      return true;
    }
  }
  return false;
}

}  // namespace

TemplateWording read_template_wording(std::string_view jinja, const std::string& source) {
  if (jinja.size() > kMaxTemplateBytes) {
    base::bad_input(source, "has {} bytes; {} are allowed", jinja.size(), kMaxTemplateBytes);
  }
  const Tokens tokens = lex_jinja(jinja, source);
  check_markers(tokens, source);
  check_tool_line(tokens, source);
  TemplateWording wording;
  wording.tools_head = read_tools_head(tokens, source);
  wording.tools_tail = read_tools_tail(tokens, source);
  wording.effort_high = read_effort(tokens, "xhigh");
  wording.effort_low = read_effort(tokens, "low");
  wording.trims_every_content = trims_in_loop(tokens);
  wording.tool_responses_are_no_query = excludes_tool_responses(tokens);
  return wording;
}

}  // namespace tandem::text
