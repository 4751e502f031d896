#include "serve/openai/chat_request.h"

#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "serve/answer.h"
#include "serve/fields.h"
#include "serve/sampling_fields.h"
#include "serve/thinking.h"

namespace tandem::serve {

using base::Json;

namespace {

// Values that ask for what happens anyway.
bool is_neutral(std::string_view field, const Json& value) {
  if (is_blank(value)) return true;
  if (field == "modalities") return value == Json::array({"text"});
  return value.is_number() && value == 0;
}

// Each would change the answer; none can be honoured, so none may be passed over in silence.
void refuse_unsupported(const Json& body) {
  static constexpr const char* kFields[] = {"functions",       "function_call", "modalities",
                                            "audio",           "bad_words",     "allowed_token_ids",
                                            "prompt_logprobs", "guided_regex",  "structured_outputs"};
  for (const char* field : kFields) {
    const Json& value = base::json_member(body, field);
    if (is_neutral(field, value)) continue;
    const std::string given = value.is_primitive() && !value.is_string() ? value.dump() : value.type_name();
    base::bad_input(field, "is not supported ({} was given)", given);
  }
}

int read_choices(const Json& body) {
  const auto choices = int_field(body, "n").value_or(1);
  if (choices < 1 || choices > kMostChoices) base::bad_input("n", "{} is outside [1, {}]", choices, kMostChoices);
  return static_cast<int>(choices);
}

void read_logprobs(const Json& body, engine::Request& request) {
  const bool logprobs = bool_field(body, "logprobs").value_or(false);
  const auto top = int_field(body, "top_logprobs");
  if (top && (*top < 0 || *top > engine::kMostTopLogprobs)) {
    base::bad_input("top_logprobs", "{} is outside [0, {}]", *top, engine::kMostTopLogprobs);
  }
  if (top.value_or(0) > 0 && !logprobs) base::bad_input("top_logprobs", "needs logprobs: true");
  if (logprobs) request.top_logprobs = top.value_or(0);
}

// Whether the answer goes on from the assistant's last words: it does where the conversation ends with them, unless the
// request says otherwise.
bool continues_last_message(const Json& body, const std::vector<text::Message>& messages) {
  const auto asked = bool_field(body, "continue_final_message");
  const auto prompt = bool_field(body, "add_generation_prompt");
  const bool open = !messages.empty() && messages.back().role == text::Role::kAssistant;
  const bool out = asked.value_or(open && prompt != true && messages.back().tool_calls.empty());
  if (out && prompt == true) base::bad_input("add_generation_prompt", "is true, but the last message is to go on");
  if (!out && prompt == false)
    base::bad_input("add_generation_prompt", "is false, but there are no words to go on from");
  return out;
}

}  // namespace

ChatRequest chat_request(const Json& body) {
  ChatRequest out;
  out.model = string_field(body, "model").value_or("");
  out.stream = bool_field(body, "stream").value_or(false);
  out.include_usage =
      bool_field(object_field(body, "stream_options"), "include_usage", "stream_options.").value_or(false);
  out.return_progress = bool_field(body, "return_progress").value_or(false);
  refuse_unsupported(body);
  out.choices = read_choices(body);

  out.request.messages = text::messages_from_json(base::json_member(body, "messages"));
  out.tools = read_tools(body);
  out.request.tools = out.tools.shown();
  out.format = read_output_format(body);
  read_thinking(body, out.request);
  out.request.template_options.continue_last_message = continues_last_message(body, out.request.messages);
  read_sampling(body, out.request);
  read_logprobs(body, out.request);
  return out;
}

}  // namespace tandem::serve
