// The form that an answer's content must have, and the grammar that makes it so.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "grammar/grammar.h"
#include "serve/tools.h"

namespace tandem::serve {

struct OutputFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema, kGrammar };
  Kind kind = Kind::kText;
  base::Json schema = nullptr;  // kJsonSchema
  std::string grammar{};        // kGrammar: EBNF
  std::string field{};          // the request's field, for messages
  bool blank_lines = true;      // may stand in front, as the model leaves one after its reasoning
};

// response_format, or one of the fields by which other servers take the same: json_schema, guided_json, grammar,
// guided_grammar, guided_choice. Throws base::Error{kBadInput} whose source is the field; two of them are refused.
OutputFormat read_output_format(const base::Json& body);

// {"type": "text" | "json_object" | "json_schema", …} with the schema in `schema` or in `json_schema.schema`.
OutputFormat read_format_object(const base::Json& format, const std::string& field);

// Whether an answer that may call these tools and has this form needs a grammar at all.
bool forces_something(const ToolRequest& tools, const OutputFormat& format);

// The grammar of such an answer. REQUIRES forces_something. Throws
// base::Error{kBadInput} for a schema or a grammar that is not supported.
std::shared_ptr<const grammar::Grammar> answer_grammar(const ToolRequest& tools, const OutputFormat& format);

}  // namespace tandem::serve
