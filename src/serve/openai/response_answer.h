// The answer of OpenAI's /v1/responses: one object, or the events of a stream.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "serve/answer.h"
#include "serve/openai/response_output.h"
#include "text/tokenizer.h"

namespace tandem::serve {

class WholeResponse : public WholeFormat {
 public:
  // The tokenizer, which spells the tokens of log probabilities, must outlive the answer.
  WholeResponse(ResponseContext context, const text::Tokenizer& tokenizer)
      : context_(std::move(context)), tokenizer_(tokenizer) {}

  HttpResponse answer(const std::vector<CollectedAnswer>& choices) override;

 private:
  ResponseContext context_;
  const text::Tokenizer& tokenizer_;
};

// Each item of the output is opened, grows by deltas, and is closed before the next one is opened.
class ResponseStream : public StreamFormat {
 public:
  ResponseStream(ResponseContext context, const text::Tokenizer& tokenizer)
      : context_(std::move(context)), tokenizer_(tokenizer) {}

  std::string begin(int64_t prompt_tokens) override;
  std::string add(int choice, const engine::Update& update) override;
  std::string end() override;
  std::string fail(const ApiError& error) override;

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };

  std::string event(const char* type, base::Json members);
  // An event of the open item.
  std::string item_event(const char* type, base::Json members);

  std::string open_reasoning();
  std::string open_message();
  std::string open_call(const std::string& shown);
  std::string opened(Item kind, const base::Json& item);
  std::string add_reasoning(const std::string& text);
  std::string add_content(const std::string& text);
  std::string add_arguments(const std::string& text);
  // Ends the open item, if there is one.
  std::string close(const char* status);
  std::string close_reasoning(const char* status);
  std::string close_message(const char* status);
  std::string close_call(const char* status);
  std::string closed(const base::Json& item);

  ResponseContext context_;
  const text::Tokenizer& tokenizer_;
  int64_t sequence_number_ = 0;
  base::Json output_ = base::Json::array();  // the items that are complete

  Item open_ = Item::kNone;
  std::string id_;                             // of the open item
  std::string text_;                           // of the open item so far
  base::Json logprobs_ = base::Json::array();  // of the open message so far
  ResponseCall call_;                          // where a call is open
  std::vector<engine::StepLogprobs> untold_;   // log probabilities that no text has come for yet
  engine::Outcome outcome_;                    // once the answer has ended
};

}  // namespace tandem::serve
