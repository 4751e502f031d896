// The request of OpenAI's /v1/completions (docs/api.md), as the engine takes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "serve/output_format.h"
#include "text/tokenizer.h"

namespace tandem::serve {

struct CompletionPrompt {
  std::string text;  // for `echo`; of token ids, what they spell
  std::vector<int32_t> tokens;
};

struct CompletionRequest {
  engine::Request request;  // raw; without a prompt and a grammar
  std::vector<CompletionPrompt> prompts;
  OutputFormat format;
  std::string model;  // as asked for; empty: none
  int choices_a_prompt = 1;
  bool echo = false;  // the prompt's text stands before the answer's
  bool stream = false;
  bool include_usage = false;  // a last chunk with the usage

  int choices() const { return choices_a_prompt * static_cast<int>(prompts.size()); }
};

// Throws base::Error{kBadInput} whose source is the field: for wrong types, for values out of range, and for fields
// that would change the answer and are not supported. Fields it does not know are ignored.
CompletionRequest completion_request(const base::Json& body, const text::Tokenizer& tokenizer);

}  // namespace tandem::serve
