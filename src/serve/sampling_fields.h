// The fields of a request that say how its answer is drawn, under the names that OpenAI's and vLLM's APIs share.
#pragma once

#include "base/json.h"
#include "engine/request.h"

namespace tandem::serve {

// temperature, top_p, top_k, min_p, the penalties, logit_bias, seed, stop, min_tokens, max_tokens and
// max_completion_tokens, ignore_eos. Throws base::Error{kBadInput} whose source is the field.
void read_sampling(const base::Json& body, engine::Request& request);

// A string or an array of strings; null: none. Throws base::Error{kBadInput} with `field` as its source.
std::vector<std::string> read_stop(const base::Json& value, const char* field);

// Absent, or −1 as some clients write it: no limit. Throws base::Error{kBadInput} where negative.
std::optional<int64_t> read_token_limit(const base::Json& body, const char* field);

}  // namespace tandem::serve
