#include "serve/ollama/chat.h"

#include <chrono>
#include <ctime>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include "serve/fields.h"
#include "serve/sampling_fields.h"
#include "serve/thinking.h"

namespace tandem::serve {

using base::Json;
using text::OutputEvent;

namespace {

std::string now_text() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(std::time(nullptr)));
}

int64_t nanoseconds(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

// A message in the form of OpenAI's API: pictures are parts of the content, the thinking has its name there.
Json openai_message(const Json& message, const std::string& path) {
  if (!message.is_object()) base::bad_input(path, "must be an object, not {}", message.type_name());
  Json out = message;
  if (const auto thinking = string_field(message, "thinking", path + ".")) out["reasoning_content"] = *thinking;
  const Json& images = base::json_member(message, "images");
  if (images.is_null()) return out;
  if (!images.is_array()) base::bad_input(path + ".images", "must be an array, not {}", images.type_name());
  Json parts = Json::array();
  const std::string content = string_field(message, "content", path + ".").value_or("");
  if (!content.empty()) parts.push_back({{"type", "text"}, {"text", content}});
  for (size_t i = 0; i < images.size(); ++i) parts.push_back({{"type", "image"}});
  out["content"] = std::move(parts);
  return out;
}

std::vector<text::Message> read_ollama_messages(const Json& body) {
  const Json& messages = base::json_member(body, "messages");
  if (!messages.is_array()) {
    base::bad_input("messages", "must be an array, not {}", messages.is_null() ? "absent" : messages.type_name());
  }
  Json list = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    list.push_back(openai_message(messages[i], fmt::format("messages[{}]", i)));
  }
  return text::messages_from_json(list);
}

// true, false, or how hard: "low", "medium", "high".
void read_think(const Json& body, engine::Request& request) {
  const Json& think = base::json_member(body, "think");
  if (think.is_null()) return;
  if (think.is_boolean()) {
    request.template_options.thinking = think.get<bool>();
  } else if (think.is_string()) {
    set_effort(think.get<std::string>(), "think", request);
  } else {
    base::bad_input("think", "must be true, false, low, medium or high, not {}", think.type_name());
  }
}

void read_options(const Json& body, engine::Request& request) {
  Json options = object_field(body, "options");
  if (options.is_null()) return;
  // Ollama's name for it; −1 and −2 are no limit.
  const auto limit = int_field(options, "num_predict", "options.");
  options.erase("max_tokens");
  options.erase("max_completion_tokens");
  read_sampling(options, request);
  if (limit.value_or(-1) >= 0) request.max_tokens = limit;
}

OutputFormat read_ollama_format(const Json& body) {
  const Json& format = base::json_member(body, "format");
  if (is_blank(format) && !format.is_structured()) return {};  // {} is a schema
  if (format == "json") return {.kind = OutputFormat::Kind::kJsonObject, .field = "format"};
  if (!format.is_object()) base::bad_input("format", "must be json or a JSON schema, not {}", format.type_name());
  return {.kind = OutputFormat::Kind::kJsonSchema, .schema = format, .field = "format"};
}

Json call_json(const AnsweredCall& call) {
  return {{"function", {{"name", call.name}, {"arguments", base::parse_json(call.arguments, "arguments")}}}};
}

Json ended(const std::string& model, const Json& message, const engine::Outcome& outcome) {
  const engine::Timings& timings = outcome.timings;
  return {{"model", model},
          {"created_at", now_text()},
          {"message", message},
          {"done", true},
          {"done_reason", outcome.reason == engine::FinishReason::kLength ? "length" : "stop"},
          {"total_duration", nanoseconds(timings.queued_seconds + timings.prefill_seconds + timings.decode_seconds)},
          {"load_duration", 0},
          {"prompt_eval_count", outcome.prompt_tokens},
          {"prompt_eval_duration", nanoseconds(timings.prefill_seconds)},
          {"eval_count", outcome.completion_tokens},
          {"eval_duration", nanoseconds(timings.decode_seconds)}};
}

}  // namespace

OllamaChat ollama_chat(const Json& body) {
  OllamaChat out;
  out.model = string_field(body, "model").value_or("");
  out.stream = bool_field(body, "stream").value_or(true);
  out.request.messages = read_ollama_messages(body);
  out.tools = read_tools(body);
  out.request.tools = out.tools.shown();
  out.format = read_ollama_format(body);
  read_think(body, out.request);
  read_options(body, out.request);
  out.request.template_options.continue_last_message = !out.request.messages.empty() &&
                                                       out.request.messages.back().role == text::Role::kAssistant &&
                                                       out.request.messages.back().tool_calls.empty();
  return out;
}

HttpResponse OllamaAnswer::answer(const std::vector<CollectedAnswer>& choices) {
  const CollectedAnswer& answer = choices.front();
  Json message = {{"role", "assistant"}, {"content", answer.content}};
  if (!answer.reasoning.empty()) message["thinking"] = answer.reasoning;
  for (const AnsweredCall& call : answer.calls) message["tool_calls"].push_back(call_json(call));
  return {.body = dump(ended(model_, message, answer.outcome))};
}

std::string OllamaStream::line(const Json& message) const {
  return dump(Json{{"model", model_}, {"created_at", now_text()}, {"message", message}, {"done", false}}) + "\n";
}

std::string OllamaStream::add(int, const engine::Update& update) {
  std::string out;
  for (const OutputEvent& event : update.events) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        out += line({{"role", "assistant"}, {"content", ""}, {"thinking", event.text}});
        break;
      case OutputEvent::Kind::kContent:
        out += line({{"role", "assistant"}, {"content", event.text}});
        break;
      case OutputEvent::Kind::kToolCallBegin:
        call_ = {.name = event.text, .arguments = {}};
        break;
      case OutputEvent::Kind::kToolCallArguments:
        call_.arguments += event.text;
        break;
      case OutputEvent::Kind::kToolCallEnd:
        out += line({{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call_json(call_)})}});
        break;
    }
  }
  if (update.outcome) out += dump(ended(model_, {{"role", "assistant"}, {"content", ""}}, *update.outcome)) + "\n";
  return out;
}

std::string OllamaStream::fail(const ApiError& error) {
  return dump(Json{{"error", error.message}}) + "\n";
}

HttpResponse ollama_error(const ApiError& error) {
  return {.status = error.status, .headers = error.headers, .body = dump(Json{{"error", error.message}})};
}

}  // namespace tandem::serve
