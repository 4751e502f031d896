// Token ids in requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace tandem::serve {

// Throws base::Error{kBadInput} with `field` or one of its elements as the source where the value is no array of ids of
// this vocabulary.
std::vector<int32_t> read_token_ids(const base::Json& value, const std::string& field,
                                    const text::Tokenizer& tokenizer);

// Whether a text of this request may hold control tokens: parse_special, or add_special_tokens as others name it. They
// are plain text unless it says so.
text::AddedTokens read_added_tokens(const base::Json& body);

}  // namespace tandem::serve
