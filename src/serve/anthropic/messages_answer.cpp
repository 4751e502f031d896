#include "serve/anthropic/messages_answer.h"

#include <array>
#include <openssl/evp.h>
#include <span>
#include <utility>

#include "serve/anthropic/error_form.h"

namespace tandem::serve {

using base::Json;
using text::OutputEvent;

namespace {

// Arguments are an object around values that were parsed with the limit's default already.
constexpr base::JsonLimits kArgumentLimits{.max_depth = 256};

void hash_text(base::Sha256& hash, std::string_view text) {
  hash.update(std::as_bytes(std::span(text.data(), text.size())));
}

// Base64 as clients expect it. Nobody checks it: thinking that comes back is taken as it is.
std::string signature_of(base::Sha256& hash) {
  const std::string hex = hash.hex();
  std::array<unsigned char, 128> out{};  // 4 characters for 3 bytes of 64, and a zero
  const int size =
      EVP_EncodeBlock(out.data(), reinterpret_cast<const unsigned char*>(hex.data()), static_cast<int>(hex.size()));
  return {out.begin(), out.begin() + size};
}

Json message_usage(int64_t prompt, int64_t cached, int64_t completion) {
  return {{"input_tokens", prompt - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", completion}};
}

Json message_usage(const engine::Outcome& outcome) {
  Json out = message_usage(outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens);
  out["output_tokens_details"] = {{"thinking_tokens", outcome.reasoning_tokens}};
  return out;
}

Json ending(const engine::Outcome& outcome, std::optional<int64_t> max_tokens) {
  Json out = {{"stop_reason", stop_reason(outcome, max_tokens)}, {"stop_sequence", nullptr}};
  if (outcome.reason == engine::FinishReason::kStop && outcome.stop_string) out["stop_sequence"] = *outcome.stop_string;
  return out;
}

Json message_head(const MessageIdentity& identity, Json content) {
  return {{"id", identity.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", identity.model},
          {"content", std::move(content)}};
}

Json content_blocks(const CollectedAnswer& answer) {
  Json out = Json::array();
  if (!answer.reasoning.empty()) {
    base::Sha256 hash;
    hash_text(hash, answer.reasoning);
    out.push_back({{"type", "thinking"}, {"thinking", answer.reasoning}, {"signature", signature_of(hash)}});
  }
  if (!answer.content.empty()) out.push_back({{"type", "text"}, {"text", answer.content}});
  for (const AnsweredCall& call : answer.calls) {
    out.push_back({{"type", "tool_use"},
                   {"id", random_id("toolu_")},
                   {"name", call.name},
                   {"input", base::parse_json(call.arguments, "arguments", kArgumentLimits)}});
  }
  return out;
}

}  // namespace

std::string_view stop_reason(const engine::Outcome& outcome, std::optional<int64_t> max_tokens) {
  switch (outcome.reason) {
    case engine::FinishReason::kToolCalls:
      return "tool_use";
    case engine::FinishReason::kLength:
      return max_tokens && outcome.completion_tokens >= *max_tokens ? "max_tokens" : "model_context_window_exceeded";
    case engine::FinishReason::kStop:
      return outcome.stop_string ? "stop_sequence" : "end_turn";
    // The API has no word for an answer that the server ended because it went in circles.
    case engine::FinishReason::kRepeat:
    case engine::FinishReason::kCancelled:
    case engine::FinishReason::kError:
      break;
  }
  return "end_turn";
}

HttpResponse MessageAnswer::answer(const std::vector<CollectedAnswer>& choices) {
  const CollectedAnswer& answer = choices.at(0);
  Json body = message_head(identity_, content_blocks(answer));
  body.update(ending(answer.outcome, identity_.max_tokens));
  body["usage"] = message_usage(answer.outcome);
  return {.body = dump(body)};
}

std::string MessageStream::begin(int64_t prompt_tokens) {
  Json message = message_head(identity_, Json::array());
  message.update({{"stop_reason", nullptr}, {"stop_sequence", nullptr}});
  message["usage"] = message_usage(prompt_tokens, 0, 0);  // message_delta tells what was cached
  return sse_event("message_start", {{"type", "message_start"}, {"message", std::move(message)}});
}

std::string MessageStream::open(Block block, const Json& start) {
  std::string out = close();
  open_ = block;
  ++index_;
  if (block == Block::kThinking) thinking_ = std::make_unique<base::Sha256>();
  return out + sse_event("content_block_start",
                         {{"type", "content_block_start"}, {"index", index_}, {"content_block", start}});
}

std::string MessageStream::close() {
  if (open_ == Block::kNone) return {};
  std::string out;
  if (open_ == Block::kThinking) out = delta({{"type", "signature_delta"}, {"signature", signature_of(*thinking_)}});
  open_ = Block::kNone;
  return out + sse_event("content_block_stop", {{"type", "content_block_stop"}, {"index", index_}});
}

std::string MessageStream::delta(const Json& delta) const {
  return sse_event("content_block_delta", {{"type", "content_block_delta"}, {"index", index_}, {"delta", delta}});
}

std::string MessageStream::add(const OutputEvent& event) {
  std::string out;
  switch (event.kind) {
    case OutputEvent::Kind::kReasoning:
      if (open_ != Block::kThinking) {
        out = open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      }
      hash_text(*thinking_, event.text);
      return out + delta({{"type", "thinking_delta"}, {"thinking", event.text}});
    case OutputEvent::Kind::kContent:
      if (open_ != Block::kText) out = open(Block::kText, {{"type", "text"}, {"text", ""}});
      return out + delta({{"type", "text_delta"}, {"text", event.text}});
    case OutputEvent::Kind::kToolCallBegin:
      return open(Block::kToolUse,
                  {{"type", "tool_use"}, {"id", random_id("toolu_")}, {"name", event.text}, {"input", Json::object()}});
    case OutputEvent::Kind::kToolCallArguments:
      return delta({{"type", "input_json_delta"}, {"partial_json", event.text}});
    case OutputEvent::Kind::kToolCallEnd:
      return close();
  }
  return out;
}

std::string MessageStream::add(int, const engine::Update& update) {
  std::string out;
  for (const OutputEvent& event : update.events) out += add(event);
  if (!update.outcome) return out;
  out += close();
  return out + sse_event("message_delta", {{"type", "message_delta"},
                                           {"delta", ending(*update.outcome, identity_.max_tokens)},
                                           {"usage", message_usage(*update.outcome)}});
}

std::string MessageStream::progress(const engine::Progress&) {
  return sse_event("ping", {{"type", "ping"}});
}

std::string MessageStream::end() {
  return sse_event("message_stop", {{"type", "message_stop"}});
}

std::string MessageStream::fail(const ApiError& error) {
  return sse_event("error", anthropic_error_json(error));
}

}  // namespace tandem::serve
