// The answer of OpenAI's /v1/chat/completions: one object, or chunks of a stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "serve/answer.h"
#include "text/tokenizer.h"

namespace tandem::serve {

// What an answer says about itself.
struct AnswerIdentity {
  std::string id;       // "chatcmpl-…"
  std::string model;    // the model that answers
  int64_t created = 0;  // seconds since 1970
};

// OpenAI's usage of all choices together: the prompt counts once.
class Usage {
 public:
  void add(const engine::Outcome& outcome);
  base::Json json() const;

 private:
  int64_t prompt_ = 0, cached_ = 0, completion_ = 0, reasoning_ = 0;
};

class ChatCompletion : public WholeFormat {
 public:
  // The tokenizer, which spells the tokens of log probabilities, must outlive the answer.
  ChatCompletion(AnswerIdentity identity, const text::Tokenizer& tokenizer)
      : identity_(std::move(identity)), tokenizer_(tokenizer) {}

  HttpResponse answer(const std::vector<CollectedAnswer>& choices) override;

 private:
  AnswerIdentity identity_;
  const text::Tokenizer& tokenizer_;
};

struct ChatStreamOptions {
  int choices = 1;
  bool include_usage = false;
  bool return_progress = false;
};

class ChatStream : public StreamFormat {
 public:
  ChatStream(AnswerIdentity identity, const text::Tokenizer& tokenizer, ChatStreamOptions options);

  std::string begin(int64_t prompt_tokens) override;
  std::string add(int choice, const engine::Update& update) override;
  std::string progress(const engine::Progress& progress) override;
  std::string end() override;
  std::string fail(const ApiError& error) override;

 private:
  std::string chunk(int choice, const base::Json& delta, const base::Json& logprobs = nullptr,
                    const std::string& finish_reason = "null") const;
  static base::Json delta(const text::OutputEvent& event);

  std::string head_;  // of every chunk, up to its choices
  const text::Tokenizer& tokenizer_;
  ChatStreamOptions options_;
  Usage usage_;
};

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}]} for the tokens after the reasoning; null where there are
// none.
base::Json chat_logprobs(const std::vector<engine::StepLogprobs>& steps, const text::Tokenizer& tokenizer);

}  // namespace tandem::serve
