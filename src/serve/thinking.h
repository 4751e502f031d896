// Whether, how hard and for how long the model thinks before it answers: the many fields by which clients say so.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/request.h"

namespace tandem::serve {

// reasoning_effort, enable_thinking, preserve_thinking and thinking_budget, each at the top or in chat_template_kwargs
// (where both say something they must agree), thinking {type, budget_tokens} and reasoning {effort, max_tokens,
// enabled}. Throws base::Error{kBadInput} whose source is the field.
void read_thinking(const base::Json& body, engine::Request& request);

// none, minimal, low, medium, high, xhigh or max; none switches thinking off.
void set_effort(const std::string& word, const std::string& field, engine::Request& request);
// Tokens of reasoning at most; 0 switches thinking off.
void set_thinking_budget(int64_t tokens, const std::string& field, engine::Request& request);

}  // namespace tandem::serve
