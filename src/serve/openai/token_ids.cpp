#include "serve/openai/token_ids.h"

#include <fmt/format.h>

#include "base/error.h"
#include "serve/fields.h"

namespace tandem::serve {

using base::Json;

std::vector<int32_t> read_token_ids(const Json& value, const std::string& field, const text::Tokenizer& tokenizer) {
  if (!value.is_array()) base::bad_input(field, "must be an array of token ids, not {}", value.type_name());
  std::vector<int32_t> out;
  out.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const Json& id = value[i];
    const std::string place = fmt::format("{}[{}]", field, i);
    if (!id.is_number_integer()) base::bad_input(place, "must be a token id, not {}", id.type_name());
    if (id < 0 || id >= tokenizer.size()) {
      base::bad_input(place, "token id {} is outside [0, {})", id.dump(), tokenizer.size());
    }
    out.push_back(id.get<int32_t>());
  }
  return out;
}

text::AddedTokens read_added_tokens(const Json& body) {
  const bool parse = bool_field(body, "parse_special").value_or(false);
  const bool add = bool_field(body, "add_special_tokens").value_or(false);
  return parse || add ? text::AddedTokens::kParse : text::AddedTokens::kPlain;
}

}  // namespace tandem::serve
