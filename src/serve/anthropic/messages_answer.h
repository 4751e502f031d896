// The answer of Anthropic's /v1/messages: one message, or the events of a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/json.h"
#include "engine/request.h"
#include "serve/answer.h"

namespace tandem::serve {

// What an answer says about itself, and what it must know of its request.
struct MessageIdentity {
  std::string id;     // "msg_…"
  std::string model;  // the name that was asked for
  std::optional<int64_t> max_tokens{};
};

// end_turn, max_tokens, stop_sequence, tool_use, or model_context_window_exceeded where the context ended the answer
// before `max_tokens` did.
std::string_view stop_reason(const engine::Outcome& outcome, std::optional<int64_t> max_tokens);

class MessageAnswer : public WholeFormat {
 public:
  explicit MessageAnswer(MessageIdentity identity) : identity_(std::move(identity)) {}
  HttpResponse answer(const std::vector<CollectedAnswer>& choices) override;

 private:
  MessageIdentity identity_;
};

class MessageStream : public StreamFormat {
 public:
  explicit MessageStream(MessageIdentity identity) : identity_(std::move(identity)) {}

  std::string begin(int64_t prompt_tokens) override;
  std::string add(int choice, const engine::Update& update) override;
  std::string progress(const engine::Progress& progress) override;
  std::string end() override;
  std::string fail(const ApiError& error) override;

 private:
  enum class Block { kNone, kThinking, kText, kToolUse };

  std::string add(const text::OutputEvent& event);
  std::string open(Block block, const base::Json& start);
  std::string close();
  std::string delta(const base::Json& delta) const;

  MessageIdentity identity_;
  Block open_ = Block::kNone;
  int index_ = -1;  // of the block that is open or was last
  std::unique_ptr<base::Sha256> thinking_;
};

}  // namespace tandem::serve
