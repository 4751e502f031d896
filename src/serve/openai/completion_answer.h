// The answer of OpenAI's /v1/completions: one object, or chunks of a stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "serve/answer.h"
#include "serve/openai/chat_answer.h"
#include "text/tokenizer.h"

namespace tandem::serve {

// The log probabilities of one choice, as they come: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}. A
// token that is no whole character is spelled bytes:\xNN…; offsets count characters of the choice's text.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const text::Tokenizer& tokenizer, int64_t offset) : tokenizer_(&tokenizer), offset_(offset) {}
  base::Json add(const std::vector<engine::StepLogprobs>& steps);

 private:
  const text::Tokenizer* tokenizer_;
  int64_t offset_;
};

// What an answer must know of its request.
struct CompletionContext {
  AnswerIdentity identity;          // id "cmpl-…"
  std::vector<std::string> echoes;  // of each prompt: what stands before its answers
  int choices_a_prompt = 1;
  bool include_usage = false;

  int choices() const { return choices_a_prompt * static_cast<int>(echoes.size()); }
  const std::string& echo(int choice) const { return echoes[static_cast<size_t>(choice / choices_a_prompt)]; }
};

// Usage of all choices together: each prompt counts once.
class CompletionUsage {
 public:
  explicit CompletionUsage(int choices_a_prompt) : choices_a_prompt_(choices_a_prompt) {}
  void add(int choice, const engine::Outcome& outcome);
  base::Json json() const;

 private:
  int choices_a_prompt_;
  int64_t prompt_ = 0, cached_ = 0, completion_ = 0;
};

class WholeCompletion : public WholeFormat {
 public:
  // The tokenizer, which spells the tokens of log probabilities, must outlive the answer.
  WholeCompletion(CompletionContext context, const text::Tokenizer& tokenizer)
      : context_(std::move(context)), tokenizer_(tokenizer) {}

  HttpResponse answer(const std::vector<CollectedAnswer>& choices) override;

 private:
  CompletionContext context_;
  const text::Tokenizer& tokenizer_;
};

class CompletionStream : public StreamFormat {
 public:
  CompletionStream(CompletionContext context, const text::Tokenizer& tokenizer);

  std::string begin(int64_t prompt_tokens) override;
  std::string add(int choice, const engine::Update& update) override;
  std::string end() override;
  std::string fail(const ApiError& error) override;

 private:
  std::string chunk(int choice, const std::string& text, const base::Json& logprobs, const base::Json& finish_reason);
  base::Json body(base::Json choices) const;

  CompletionContext context_;
  std::vector<CompletionLogprobs> logprobs_;  // by choice
  CompletionUsage usage_;
};

}  // namespace tandem::serve
