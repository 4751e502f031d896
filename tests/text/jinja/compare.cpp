// Compares the native renderer with what Jinja made of the same conversations (generate.mjs).
//
//   chat_template_compare TEMPLATE CASES

#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "text/chat_template.h"

namespace {

using tandem::base::Json;
using namespace tandem::text;

TemplateOptions options_of(const Json& json) {
  TemplateOptions options;
  options.add_generation_prompt = json["add_generation_prompt"].get<bool>();
  options.thinking = json.value("enable_thinking", options.thinking);
  options.preserve_thinking = json.value("preserve_thinking", options.preserve_thinking);
  const std::string effort = json.value("reasoning_effort", "xhigh");
  if (effort == "low") {
    options.effort = ReasoningEffort::kLow;
  } else if (effort == "medium") {
    options.effort = ReasoningEffort::kMedium;
  } else if (effort != "xhigh") {
    tandem::base::bad_input("reasoning_effort", "is not known");
  }
  return options;
}

// What the native side makes of a case; "" with `refusal` set where it refuses.
std::string render(const ChatTemplate& chat, const Json& given, std::string& refusal) {
  try {
    return ChatTemplate::join(
        chat.render(read_messages(given["messages"]), given["tools"], options_of(given["options"])));
  } catch (const tandem::base::Error& error) {
    refusal = error.what();
    return {};
  }
}

void show_difference(size_t index, const Json& given, const std::string& native, const std::string& refusal) {
  if (!refusal.empty()) return fmt::print("case {}: Jinja renders it, refused natively: {}\n", index, refusal);
  if (given.contains("refused")) {
    return fmt::print("case {}: rendered natively, Jinja refuses: {}\n", index, given["refused"].get<std::string>());
  }
  const auto expected = given["text"].get<std::string>();
  const auto [a, b] = std::mismatch(native.begin(), native.end(), expected.begin(), expected.end());
  const auto at = static_cast<size_t>(a - native.begin());
  const size_t from = at < 60 ? 0 : at - 60;
  fmt::print("case {}: differs at byte {}\n  native: {}\n  jinja:  {}\n", index, at, native.substr(from, 120),
             expected.substr(from, 120));
}

int compare(const char* template_path, const char* cases_path) {
  const ChatTemplate chat = ChatTemplate::from_jinja(tandem::base::read_text(template_path, 1 << 20), template_path);
  const Json cases = tandem::base::parse_json(tandem::base::read_text(cases_path, 256 << 20), cases_path);
  size_t equal = 0, refused = 0, different = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    std::string refusal;
    const std::string native = render(chat, cases[i], refusal);
    const bool jinja_refuses = cases[i].contains("refused");
    if (jinja_refuses && !refusal.empty()) {
      ++refused;
    } else if (!jinja_refuses && refusal.empty() && native == cases[i]["text"].get_ref<const std::string&>()) {
      ++equal;
    } else if (++different <= 5) {
      show_difference(i, cases[i], native, refusal);
    }
  }
  fmt::print("{}: {} conversations equal byte for byte, {} refused by both, {} different\n", template_path, equal,
             refused, different);
  // Too few of either would mean that the generator no longer tests what it should.
  return different == 0 && equal >= 500 && refused >= 10 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: chat_template_compare TEMPLATE CASES\n");
    return 2;
  }
  try {
    return compare(argv[1], argv[2]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
