#include "serve/openai/response_request.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "serve/fields.h"
#include "serve/http/errors.h"
#include "serve/openai/response_items.h"
#include "serve/sampling_fields.h"
#include "serve/thinking.h"

namespace tandem::serve {

using base::Json;

namespace {

// A stream repeats them three times, and its unsent part is bounded.
constexpr size_t kMostEchoedBytes = 64 << 10;

void refuse_stored(const Json& body) {
  const auto given = [&](const char* field) { return !base::json_member(body, field).is_null(); };
  if (given("previous_response_id")) {
    base::bad_input("previous_response_id", "is not supported: nothing is stored here, send the whole conversation");
  }
  if (given("conversation")) {
    base::bad_input("conversation", "is not supported: nothing is stored here, send the whole conversation as input");
  }
  if (given("prompt")) base::bad_input("prompt", "is not supported: no prompts are stored here");
  if (bool_field(body, "background").value_or(false)) {
    base::bad_input("background", "is not supported: an answer is given while the client waits");
  }
}

bool includes(const Json& body, const char* what) {
  const Json& list = base::json_member(body, "include");
  if (list.is_null()) return false;
  if (!list.is_array()) base::bad_input("include", "must be an array, not {}", list.type_name());
  return std::find(list.begin(), list.end(), what) != list.end();
}

void read_response_logprobs(const Json& body, engine::Request& request) {
  const auto top = int_field(body, "top_logprobs");
  if (top && (*top < 0 || *top > engine::kMostTopLogprobs)) {
    base::bad_input("top_logprobs", "{} is outside [0, {}]", *top, engine::kMostTopLogprobs);
  }
  if (includes(body, "message.output_text.logprobs") || top.value_or(0) > 0) request.top_logprobs = top.value_or(0);
}

bool asks_for_summary(const Json& body) {
  const Json& reasoning = object_field(body, "reasoning");
  return string_field(reasoning, "summary", "reasoning.") || string_field(reasoning, "generate_summary", "reasoning.");
}

Json member_or(const Json& body, const char* key, const Json& fallback) {
  const Json& value = base::json_member(body, key);
  return value.is_null() ? fallback : value;
}

Json echo_of(const Json& body) {
  const Json& reasoning = base::json_member(body, "reasoning");
  const Json& text = base::json_member(body, "text");
  return {{"background", false},
          {"instructions", base::json_member(body, "instructions")},
          {"max_output_tokens", base::json_member(body, "max_output_tokens")},
          {"max_tool_calls", nullptr},
          {"metadata", member_or(body, "metadata", Json::object())},
          {"parallel_tool_calls", member_or(body, "parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"prompt_cache_key", base::json_member(body, "prompt_cache_key")},
          {"reasoning",
           {{"effort", base::json_member(reasoning, "effort")}, {"summary", base::json_member(reasoning, "summary")}}},
          {"safety_identifier", base::json_member(body, "safety_identifier")},
          {"service_tier", "default"},
          {"store", false},
          {"temperature", base::json_member(body, "temperature")},
          {"text", {{"format", member_or(text, "format", {{"type", "text"}})}}},
          {"tool_choice", member_or(body, "tool_choice", "auto")},
          {"tools", member_or(body, "tools", Json::array())},
          {"top_logprobs", member_or(body, "top_logprobs", 0)},
          {"top_p", base::json_member(body, "top_p")},
          {"truncation", "disabled"},
          {"user", base::json_member(body, "user")}};
}

}  // namespace

ResponseRequest response_request(const Json& body) {
  ResponseRequest out;
  out.model = string_field(body, "model").value_or("");
  out.stream = bool_field(body, "stream").value_or(false);
  refuse_stored(body);

  out.request.messages = response_conversation(body);
  out.tools = read_response_tools(body);
  out.request.tools = out.tools.request.shown();
  out.format = read_format_object(base::json_member(object_field(body, "text"), "format"), "text.format");
  read_thinking(body, out.request);
  out.summarised = asks_for_summary(body);
  out.carries_reasoning = includes(body, "reasoning.encrypted_content");

  read_sampling(body, out.request);
  if (const auto limit = read_token_limit(body, "max_output_tokens")) {
    out.request.max_tokens = std::min(out.request.max_tokens.value_or(*limit), *limit);
  }
  read_response_logprobs(body, out.request);

  out.echo = echo_of(body);
  if (dump(out.echo).size() > kMostEchoedBytes) out.echo = echo_of(Json::object());
  return out;
}

}  // namespace tandem::serve
