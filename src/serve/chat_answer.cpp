#include "serve/chat_answer.h"

#include <chrono>
#include <fmt/format.h>
#include <random>
#include <utility>

#include "serve/errors.h"

namespace tandem::serve {

using base::Json;
using text::OutputEvent;

namespace {

std::string random_hex() {
  static thread_local std::mt19937_64 random{[] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }()};
  return fmt::format("{:016x}{:08x}", random(), random() >> 32);
}

std::string event(const std::string& data) {
  return "data: " + data + "\n\n";
}

// The error that an answer ended with; `cancelled` is the server's doing, as nobody is told when a client left.
ApiError outcome_error(const engine::Outcome& outcome) {
  if (outcome.reason == engine::FinishReason::kCancelled) {
    return http_error(503, "the request was ended because the server is shutting down", "cancelled");
  }
  return api_error(base::Error(outcome.error_kind, "", outcome.error));
}

bool failed(const engine::Outcome& outcome) {
  return outcome.reason == engine::FinishReason::kCancelled || outcome.reason == engine::FinishReason::kError;
}

}  // namespace

ChatIdentity new_chat_identity(const std::string& model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = "chatcmpl-" + random_hex(),
          .model = model,
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count()};
}

Json usage_json(const engine::Outcome& outcome) {
  return {{"prompt_tokens", outcome.prompt_tokens},
          {"completion_tokens", outcome.completion_tokens},
          {"total_tokens", outcome.prompt_tokens + outcome.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", outcome.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", outcome.reasoning_tokens}}}};
}

const std::string& ToolCallNames::id(int tool_call) {
  while (ids_.size() <= static_cast<size_t>(tool_call)) ids_.push_back("call_" + random_hex());
  return ids_[static_cast<size_t>(tool_call)];
}

void ChatCompletion::add(const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        reasoning_ += event.text;
        break;
      case OutputEvent::Kind::kContent:
        content_ += event.text;
        break;
      case OutputEvent::Kind::kToolCallBegin:
        if (names_.passed_on(event.tool_call)) calls_.push_back({.name = event.text, .arguments = ""});
        break;
      case OutputEvent::Kind::kToolCallArguments:
        if (names_.passed_on(event.tool_call)) calls_.back().arguments += event.text;
        break;
      case OutputEvent::Kind::kToolCallEnd:
        break;
    }
  }
}

Json ChatCompletion::message() {
  Json out = {{"role", "assistant"}, {"content", content_}};
  if (content_.empty() && !calls_.empty()) out["content"] = nullptr;
  if (!reasoning_.empty()) out["reasoning_content"] = reasoning_;
  if (calls_.empty()) return out;
  Json& list = out["tool_calls"] = Json::array();
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    list.push_back({{"id", names_.id(static_cast<int>(i))},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return out;
}

HttpResponse ChatCompletion::finish(const engine::Outcome& outcome) {
  if (failed(outcome)) return openai_error(outcome_error(outcome));
  const Json choice = {{"index", 0},
                       {"message", message()},
                       {"logprobs", nullptr},
                       {"finish_reason", engine::finish_reason_name(outcome.reason)}};
  const Json body = {{"id", identity_.id},       {"object", "chat.completion"},      {"created", identity_.created},
                     {"model", identity_.model}, {"choices", Json::array({choice})}, {"usage", usage_json(outcome)}};
  return {.body = dump(body)};
}

ChatStream::ChatStream(ChatIdentity identity, ChatToolPolicy policy, bool include_usage)
    : include_usage_(include_usage), names_(policy) {
  head_ = dump(Json{{"id", identity.id},
                    {"object", "chat.completion.chunk"},
                    {"created", identity.created},
                    {"model", identity.model}});
  head_.back() = ',';  // in place of the closing brace
}

std::string ChatStream::chunk(const Json& delta, const std::string& finish_reason) const {
  return event(fmt::format(R"({}"choices":[{{"index":0,"delta":{},"logprobs":null,"finish_reason":{}}}]{}}})", head_,
                           dump(delta), finish_reason, include_usage_ ? R"(,"usage":null)" : ""));
}

std::string ChatStream::begin() const {
  return chunk({{"role", "assistant"}, {"content", ""}});
}

// Null for what the client is not told.
Json ChatStream::delta(const OutputEvent& event) {
  if (event.kind == OutputEvent::Kind::kReasoning) return {{"reasoning_content", event.text}};
  if (event.kind == OutputEvent::Kind::kContent) return {{"content", event.text}};
  if (event.kind == OutputEvent::Kind::kToolCallEnd || !names_.passed_on(event.tool_call)) return nullptr;
  Json call = {{"index", event.tool_call}};
  if (event.kind == OutputEvent::Kind::kToolCallBegin) {
    call["id"] = names_.id(event.tool_call);
    call["type"] = "function";
    call["function"] = {{"name", event.text}, {"arguments", ""}};
  } else {
    call["function"] = {{"arguments", event.text}};
  }
  return {{"tool_calls", Json::array({std::move(call)})}};
}

std::string ChatStream::add(const std::vector<OutputEvent>& events) {
  std::string out;
  for (const OutputEvent& one : events) {
    if (const Json change = delta(one); !change.is_null()) out += chunk(change);
  }
  return out;
}

std::string ChatStream::finish(const engine::Outcome& outcome) {
  std::string out;
  if (failed(outcome)) {
    out = event(dump(openai_error_json(outcome_error(outcome))));
  } else {
    out = chunk(Json::object(), fmt::format("\"{}\"", engine::finish_reason_name(outcome.reason)));
    if (include_usage_) {
      out += event(fmt::format(R"({}"choices":[],"usage":{}}})", head_, dump(usage_json(outcome))));
    }
  }
  return out + event("[DONE]");
}

}  // namespace tandem::serve
