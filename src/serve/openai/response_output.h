// The objects of OpenAI's Responses API: the answer and the items of its output.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/request.h"
#include "serve/openai/chat_answer.h"
#include "serve/openai/response_tools.h"

namespace tandem::serve {

// What an answer must know of its request.
struct ResponseContext {
  AnswerIdentity identity;  // id "resp_…"
  base::Json echo;          // ResponseRequest's, as are the rest
  ResponseToolNames tools{};
  bool summarised = false;
  bool carries_reasoning = false;
};

// Items are in_progress, completed or incomplete.
base::Json reasoning_item(const ResponseContext& context, const std::string& id, const std::string& text,
                          const char* status);
// `logprobs` is an array.
base::Json output_text_part(const std::string& text, const base::Json& logprobs);
base::Json message_item(const std::string& id, const std::string& text, const base::Json& logprobs, const char* status);

// A call of a function or of a custom tool; `text` is its arguments or its input.
struct ResponseCall {
  std::string id;       // of the item, "fc_…" or "ctc_…"
  std::string call_id;  // by which the client answers it
  ResponseTool tool;
};
// `shown` is the name that the model called.
ResponseCall new_response_call(const ResponseContext& context, const std::string& shown);
base::Json call_item(const ResponseCall& call, const std::string& text, const char* status);

// The answer's object while it is in progress.
base::Json response_in_progress(const ResponseContext& context);
// And at its end.
base::Json response_ended(const ResponseContext& context, const engine::Outcome& outcome, base::Json output);
// Whether it ended before the model was done.
bool is_incomplete(const engine::Outcome& outcome);
// And after an error.
base::Json response_failed(const ResponseContext& context, const ApiError& error, base::Json output);

}  // namespace tandem::serve
