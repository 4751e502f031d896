#include "serve/chat_request.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "serve/fields.h"

namespace tandem::serve {

using base::Json;

namespace {

constexpr size_t kMaxToolNameBytes = 256;

// Values that ask for what happens anyway.
bool is_neutral(std::string_view field, const Json& value) {
  if (value.is_null() || value == false) return true;
  if (field == "n") return value == 1;
  if (field == "response_format") return base::json_member(value, "type") == "text";
  if (field == "modalities") return value == Json::array({"text"});
  if (field == "repetition_penalty" || field == "repeat_penalty") return value == 1;
  if (field == "add_generation_prompt") return value == true;
  if (value.is_number()) return value == 0;
  return value.empty();
}

// Each would change the answer; none can be honoured, so none may be passed over in silence.
void refuse_unsupported(const Json& body) {
  static constexpr const char* kFields[] = {"n",
                                            "response_format",
                                            "logprobs",
                                            "top_logprobs",
                                            "logit_bias",
                                            "functions",
                                            "function_call",
                                            "modalities",
                                            "audio",
                                            "repetition_penalty",
                                            "repeat_penalty",
                                            "min_tokens",
                                            "guided_json",
                                            "guided_regex",
                                            "guided_choice",
                                            "guided_grammar",
                                            "structured_outputs",
                                            "grammar",
                                            "json_schema",
                                            "bad_words",
                                            "allowed_token_ids",
                                            "continue_final_message",
                                            "prompt_logprobs",
                                            "add_generation_prompt"};
  for (const char* field : kFields) {
    const Json& value = base::json_member(body, field);
    if (is_neutral(field, value)) continue;
    const std::string given = value.is_primitive() && !value.is_string() ? value.dump() : value.type_name();
    base::bad_input(field, "is not supported yet ({} was given)", given);
  }
}

void read_sampling(const Json& body, engine::SamplingRequest& sampling) {
  sampling.temperature = number_field(body, "temperature");
  sampling.top_p = number_field(body, "top_p");
  sampling.min_p = number_field(body, "min_p");
  sampling.presence_penalty = number_field(body, "presence_penalty");
  sampling.frequency_penalty = number_field(body, "frequency_penalty");
  sampling.top_k = int_field(body, "top_k");
  if (sampling.top_k == -1) sampling.top_k = 0;  // "all tokens" as some clients write it
  const auto seed = int_field(body, "seed");
  if (seed && *seed < -1) base::bad_input("seed", "{} is negative (-1 draws one at random)", *seed);
  if (seed && *seed >= 0) sampling.seed = static_cast<uint64_t>(*seed);
}

std::optional<int64_t> read_max_tokens(const Json& body) {
  std::optional<int64_t> smaller;
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    const auto value = int_field(body, field);
    if (!value || *value == -1) continue;  // -1: no limit, as some clients write it
    if (*value < 0) base::bad_input(field, "{} is negative", *value);
    smaller = std::min(smaller.value_or(*value), *value);
  }
  return smaller;
}

std::vector<std::string> read_stop(const Json& body) {
  const Json& stop = base::json_member(body, "stop");
  std::vector<std::string> out;
  if (stop.is_null()) return out;
  const Json list = stop.is_array() ? stop : Json::array({stop});
  for (const Json& string : list) {
    if (!string.is_string()) {
      base::bad_input("stop", "must be a string or an array of strings, not {}", string.type_name());
    }
    out.push_back(string.get<std::string>());
  }
  return out;
}

struct Effort {
  bool thinking = true;
  text::ReasoningEffort effort = text::ReasoningEffort::kHigh;
};

Effort read_effort(const std::string& word, const std::string& field) {
  using text::ReasoningEffort;
  if (word == "none") return {.thinking = false, .effort = ReasoningEffort::kHigh};
  if (word == "minimal" || word == "low") return {.thinking = true, .effort = ReasoningEffort::kLow};
  if (word == "medium") return {.thinking = true, .effort = ReasoningEffort::kMedium};
  if (word == "high" || word == "xhigh" || word == "max") return {.thinking = true, .effort = ReasoningEffort::kHigh};
  base::bad_input(field, "must be none, minimal, low, medium, high or xhigh");
}

// One setting that may stand at the top and in chat_template_kwargs.
template <typename Value>
std::optional<Value> one_of(std::optional<Value> top, std::optional<Value> nested, const char* field) {
  if (top && nested && *top != *nested) base::bad_input(field, "differs from chat_template_kwargs.{}", field);
  return top ? top : nested;
}

void read_template_options(const Json& body, text::TemplateOptions& options) {
  const Json& nested = object_field(body, "chat_template_kwargs");
  const std::string path = "chat_template_kwargs.";
  const auto effort = one_of(string_field(body, "reasoning_effort"), string_field(nested, "reasoning_effort", path),
                             "reasoning_effort");
  const auto thinking =
      one_of(bool_field(body, "enable_thinking"), bool_field(nested, "enable_thinking", path), "enable_thinking");
  const auto preserve =
      one_of(bool_field(body, "preserve_thinking"), bool_field(nested, "preserve_thinking", path), "preserve_thinking");
  if (effort) {
    const Effort read = read_effort(*effort, "reasoning_effort");
    options.thinking = read.thinking;
    options.effort = read.effort;
    if (!read.thinking && thinking == true) {
      base::bad_input("enable_thinking", "is true, but reasoning_effort is none");
    }
  }
  if (thinking) options.thinking = *thinking;
  if (preserve) options.preserve_thinking = *preserve;
}

// The name stands in the prompt as <function=NAME>, so it may hold nothing that ends or breaks this line.
void check_tool_name(const Json& function, const std::string& path) {
  const auto name = string_field(function, "name", path + ".");
  if (!name || name->empty()) base::bad_input(path + ".name", "is missing");
  if (name->size() > kMaxToolNameBytes) {
    base::bad_input(path + ".name", "has {} bytes, at most {} are taken", name->size(), kMaxToolNameBytes);
  }
  const bool plain = std::all_of(name->begin(), name->end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > 0x20 && byte != 0x7f && c != '<' && c != '>';
  });
  if (!plain) base::bad_input(path + ".name", "may not hold spaces, control characters, < or >");
}

Json read_tools(const Json& body) {
  const Json& tools = base::json_member(body, "tools");
  if (tools.is_null()) return nullptr;
  if (!tools.is_array()) base::bad_input("tools", "must be an array, not {}", tools.type_name());
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) base::bad_input(path, "must be an object, not {}", tools[i].type_name());
    const auto type = string_field(tools[i], "type", path + ".");
    if (type && *type != "function") base::bad_input(path + ".type", "must be function");
    const Json& function = object_field(tools[i], "function", path + ".");
    if (function.is_null()) base::bad_input(path + ".function", "is missing");
    check_tool_name(function, path + ".function");
    (void)object_field(function, "parameters", path + ".function.");
    if (bool_field(function, "strict", path + ".function.").value_or(false)) {
      base::bad_input(path + ".function.strict", "is not supported yet: arguments are not forced to fit the schema");
    }
  }
  return tools.empty() ? Json(nullptr) : tools;
}

// True where the answer may call tools.
bool read_tool_choice(const Json& body) {
  const Json& choice = base::json_member(body, "tool_choice");
  if (choice.is_null() || choice == "auto") return true;
  if (choice == "none") return false;
  if (choice == "required" || choice.is_object()) {
    base::bad_input("tool_choice", "forcing a call is not supported yet: auto and none are");
  }
  base::bad_input("tool_choice", "must be auto or none");
}

std::vector<text::Message> read_conversation(const Json& body) {
  std::vector<text::Message> messages = text::read_messages(base::json_member(body, "messages"));
  for (text::Message& message : messages) {
    for (text::ContentPart& part : message.content) {
      if (part.kind == text::ContentPart::Kind::kText) continue;
      part = {.kind = text::ContentPart::Kind::kText, .text = kOmittedMedia};
    }
  }
  return text::merge_system_messages(std::move(messages));
}

}  // namespace

ChatRequest chat_request(const Json& body) {
  ChatRequest out;
  out.model = string_field(body, "model").value_or("");
  out.stream = bool_field(body, "stream").value_or(false);
  out.include_usage =
      bool_field(object_field(body, "stream_options"), "include_usage", "stream_options.").value_or(false);
  refuse_unsupported(body);

  out.request.messages = read_conversation(body);
  out.request.tools = read_tools(body);
  out.tool_calls = read_tool_choice(body) && !out.request.tools.is_null();
  if (!out.tool_calls) out.request.tools = nullptr;
  out.parallel_tool_calls = bool_field(body, "parallel_tool_calls").value_or(true);

  read_template_options(body, out.request.template_options);
  read_sampling(body, out.request.sampling);
  out.request.max_tokens = read_max_tokens(body);
  out.request.stop = read_stop(body);
  out.request.ignore_end_tokens = bool_field(body, "ignore_eos").value_or(false);
  return out;
}

}  // namespace tandem::serve
