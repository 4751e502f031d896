#include "serve/thinking.h"

#include <fmt/format.h>
#include <optional>

#include "serve/fields.h"

namespace tandem::serve {

using base::Json;

namespace {

// One setting that may stand at the top and in chat_template_kwargs.
template <typename Value>
std::optional<Value> one_of(std::optional<Value> top, std::optional<Value> nested, const char* field) {
  if (top && nested && *top != *nested) base::bad_input(field, "differs from chat_template_kwargs.{}", field);
  return top ? top : nested;
}

// Anthropic's form: {"type": "enabled" | "disabled" | "adaptive", "budget_tokens": N}.
void read_thinking_object(const Json& body, engine::Request& request) {
  const Json& thinking = object_field(body, "thinking");
  if (thinking.is_null()) return;
  const auto type = string_field(thinking, "type", "thinking.");
  if (type == "disabled") request.template_options.thinking = false;
  if (type == "enabled" || type == "adaptive") request.template_options.thinking = true;
  const auto budget = int_field(thinking, "budget_tokens", "thinking.");
  if (budget && type != "disabled") set_thinking_budget(*budget, "thinking.budget_tokens", request);
}

// {"effort": WORD, "max_tokens": N, "enabled": BOOL}, as the Responses API and routers write it.
void read_reasoning_object(const Json& body, engine::Request& request) {
  const Json& reasoning = object_field(body, "reasoning");
  if (reasoning.is_null()) return;
  const auto effort = string_field(reasoning, "effort", "reasoning.");
  if (effort) set_effort(*effort, "reasoning.effort", request);
  const auto enabled = bool_field(reasoning, "enabled", "reasoning.");
  if (enabled) request.template_options.thinking = *enabled;
  const auto budget = int_field(reasoning, "max_tokens", "reasoning.");
  if (budget) set_thinking_budget(*budget, "reasoning.max_tokens", request);
}

}  // namespace

void set_effort(const std::string& word, const std::string& field, engine::Request& request) {
  using text::ReasoningEffort;
  text::TemplateOptions& options = request.template_options;
  if (word == "none") {
    options.thinking = false;
    return;
  }
  options.thinking = true;
  if (word == "minimal" || word == "low") {
    options.effort = ReasoningEffort::kLow;
  } else if (word == "medium") {
    options.effort = ReasoningEffort::kMedium;
  } else if (word == "high" || word == "xhigh" || word == "max") {
    options.effort = ReasoningEffort::kHigh;
  } else {
    base::bad_input(field, "must be none, minimal, low, medium, high, xhigh or max");
  }
}

void set_thinking_budget(int64_t tokens, const std::string& field, engine::Request& request) {
  if (tokens < -1) base::bad_input(field, "{} is negative (-1 is no limit)", tokens);
  if (tokens == -1) return;
  if (tokens == 0) request.template_options.thinking = false;
  request.max_reasoning_tokens = tokens;
}

void read_thinking(const Json& body, engine::Request& request) {
  const Json& nested = object_field(body, "chat_template_kwargs");
  const std::string path = "chat_template_kwargs.";
  const auto effort = one_of(string_field(body, "reasoning_effort"), string_field(nested, "reasoning_effort", path),
                             "reasoning_effort");
  const auto thinking =
      one_of(bool_field(body, "enable_thinking"), bool_field(nested, "enable_thinking", path), "enable_thinking");
  const auto preserve =
      one_of(bool_field(body, "preserve_thinking"), bool_field(nested, "preserve_thinking", path), "preserve_thinking");
  const auto budget =
      one_of(int_field(body, "thinking_budget"), int_field(nested, "thinking_budget", path), "thinking_budget");
  read_thinking_object(body, request);
  read_reasoning_object(body, request);
  if (effort) {
    set_effort(*effort, "reasoning_effort", request);
    if (*effort == "none" && thinking == true) {
      base::bad_input("enable_thinking", "is true, but reasoning_effort is none");
    }
  }
  if (thinking) request.template_options.thinking = *thinking;
  if (preserve) request.template_options.preserve_thinking = *preserve;
  if (budget) set_thinking_budget(*budget, "thinking_budget", request);
}

}  // namespace tandem::serve
