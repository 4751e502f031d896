#include "serve/openai/chat_answer.h"

#include <fmt/format.h>
#include <utility>

#include "text/utf8.h"

namespace tandem::serve {

using base::Json;
using text::OutputEvent;

namespace {

Json token_json(const engine::TokenLogprob& token, const text::Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.token_bytes(token.token);
  Json numbers = Json::array();
  for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
  return {{"token", text::utf8_repaired(bytes)}, {"logprob", token.logprob}, {"bytes", std::move(numbers)}};
}

Json message_json(const CollectedAnswer& answer) {
  Json out = {{"role", "assistant"}, {"content", answer.content}};
  if (answer.content.empty() && !answer.calls.empty()) out["content"] = nullptr;
  if (!answer.reasoning.empty()) out["reasoning_content"] = answer.reasoning;
  if (answer.calls.empty()) return out;
  Json& list = out["tool_calls"] = Json::array();
  for (const AnsweredCall& call : answer.calls) {
    list.push_back({{"id", random_id("call_")},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return out;
}

}  // namespace

void Usage::add(const engine::Outcome& outcome) {
  prompt_ = outcome.prompt_tokens;
  cached_ = outcome.cached_tokens;
  completion_ += outcome.completion_tokens;
  reasoning_ += outcome.reasoning_tokens;
}

Json Usage::json() const {
  return {{"prompt_tokens", prompt_},
          {"completion_tokens", completion_},
          {"total_tokens", prompt_ + completion_},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning_}}}};
}

Json chat_logprobs(const std::vector<engine::StepLogprobs>& steps, const text::Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const engine::StepLogprobs& step : steps) {
    if (step.reasoning) continue;
    Json entry = token_json(step.drawn, tokenizer);
    Json& top = entry["top_logprobs"] = Json::array();
    for (const engine::TokenLogprob& token : step.top) top.push_back(token_json(token, tokenizer));
    content.push_back(std::move(entry));
  }
  if (content.empty()) return nullptr;
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

HttpResponse ChatCompletion::answer(const std::vector<CollectedAnswer>& choices) {
  Json list = Json::array();
  Usage usage;
  for (size_t i = 0; i < choices.size(); ++i) {
    const CollectedAnswer& choice = choices[i];
    usage.add(choice.outcome);
    list.push_back({{"index", i},
                    {"message", message_json(choice)},
                    {"logprobs", chat_logprobs(choice.logprobs, tokenizer_)},
                    {"finish_reason", engine::finish_reason_name(choice.outcome.reason)}});
  }
  const Json body = {{"id", identity_.id},       {"object", "chat.completion"}, {"created", identity_.created},
                     {"model", identity_.model}, {"choices", std::move(list)},  {"usage", usage.json()}};
  return {.body = dump(body)};
}

ChatStream::ChatStream(AnswerIdentity identity, const text::Tokenizer& tokenizer, ChatStreamOptions options)
    : tokenizer_(tokenizer), options_(options) {
  head_ = dump(Json{{"id", identity.id},
                    {"object", "chat.completion.chunk"},
                    {"created", identity.created},
                    {"model", identity.model}});
  head_.back() = ',';  // in place of the closing brace
}

std::string ChatStream::chunk(int choice, const Json& delta, const Json& logprobs,
                              const std::string& finish_reason) const {
  return sse_event(fmt::format(R"({}"choices":[{{"index":{},"delta":{},"logprobs":{},"finish_reason":{}}}]{}}})", head_,
                               choice, dump(delta), dump(logprobs), finish_reason,
                               options_.include_usage ? R"(,"usage":null)" : ""));
}

std::string ChatStream::begin(int64_t) {
  std::string out;
  for (int choice = 0; choice < options_.choices; ++choice) {
    out += chunk(choice, {{"role", "assistant"}, {"content", ""}});
  }
  return out;
}

// Null for what the client is not told.
Json ChatStream::delta(const OutputEvent& event) {
  if (event.kind == OutputEvent::Kind::kReasoning) return {{"reasoning_content", event.text}};
  if (event.kind == OutputEvent::Kind::kContent) return {{"content", event.text}};
  if (event.kind == OutputEvent::Kind::kToolCallEnd) return nullptr;
  Json call = {{"index", event.tool_call}};
  if (event.kind == OutputEvent::Kind::kToolCallBegin) {
    call["id"] = random_id("call_");
    call["type"] = "function";
    call["function"] = {{"name", event.text}, {"arguments", ""}};
  } else {
    call["function"] = {{"arguments", event.text}};
  }
  return {{"tool_calls", Json::array({std::move(call)})}};
}

// The log probabilities of a step go with its first piece of text; a step that completes none has a chunk for itself.
std::string ChatStream::add(int choice, const engine::Update& update) {
  std::string out;
  Json logprobs = update.logprobs ? chat_logprobs({*update.logprobs}, tokenizer_) : Json(nullptr);
  for (const OutputEvent& one : update.events) {
    if (const Json change = delta(one); !change.is_null())
      out += chunk(choice, change, std::exchange(logprobs, nullptr));
  }
  if (!logprobs.is_null()) out += chunk(choice, Json::object(), logprobs);
  if (update.outcome) {
    usage_.add(*update.outcome);
    out += chunk(choice, Json::object(), nullptr,
                 fmt::format("\"{}\"", engine::finish_reason_name(update.outcome->reason)));
  }
  return out;
}

std::string ChatStream::progress(const engine::Progress& progress) {
  if (!options_.return_progress) return StreamFormat::progress(progress);
  const Json json = {{"total", progress.total},
                     {"cache", progress.cached},
                     {"processed", progress.done},
                     {"time_ms", static_cast<int64_t>(progress.seconds * 1000)}};
  return sse_event(fmt::format(R"({}"choices":[],"prompt_progress":{}}})", head_, dump(json)));
}

std::string ChatStream::end() {
  std::string out;
  if (options_.include_usage)
    out = sse_event(fmt::format(R"({}"choices":[],"usage":{}}})", head_, dump(usage_.json())));
  return out + sse_event("[DONE]");
}

std::string ChatStream::fail(const ApiError& error) {
  return sse_event(dump(openai_error_json(error))) + sse_event("[DONE]");
}

}  // namespace tandem::serve
