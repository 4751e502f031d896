#include "serve/output_format.h"

#include <algorithm>
#include <fmt/format.h>

#include "base/error.h"
#include "serve/fields.h"

namespace tandem::serve {

using base::Json;

namespace {

// After its reasoning the model leaves a line blank.
constexpr int kLeadingNewlines = 4;

OutputFormat schema_format(const Json& schema, std::string field) {
  if (!schema.is_object() && !schema.is_boolean()) base::bad_input(field, "must be a JSON schema");
  return {.kind = OutputFormat::Kind::kJsonSchema, .schema = schema, .field = std::move(field)};
}

OutputFormat grammar_format(const Json& text, std::string field) {
  if (!text.is_string()) base::bad_input(field, "must be a grammar in EBNF, not {}", text.type_name());
  return {.kind = OutputFormat::Kind::kGrammar, .grammar = text.get<std::string>(), .field = std::move(field)};
}

// One of these strings, as it is.
OutputFormat choice_format(const Json& choices, std::string field) {
  std::string rule = "root ::=";
  if (!choices.is_array() || choices.empty()) base::bad_input(field, "must be an array of strings");
  for (const Json& choice : choices) {
    if (!choice.is_string()) base::bad_input(field, "must be an array of strings, not of {}", choice.type_name());
    rule += rule.ends_with('=') ? " \"" : " | \"";
    for (const char c : choice.get<std::string>()) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || c == '"' || c == '\\') {
        rule += fmt::format("\\x{:02x}", byte);
      } else {
        rule += c;
      }
    }
    rule += '"';
  }
  return {.kind = OutputFormat::Kind::kGrammar, .grammar = std::move(rule), .field = std::move(field)};
}

OutputFormat read_field(const char* field, const Json& value) {
  const std::string_view name = field;
  if (name == "response_format") return read_format_object(value, field);
  if (name == "grammar" || name == "guided_grammar") return grammar_format(value, field);
  if (name == "guided_choice") return choice_format(value, field);
  // A schema, or its text.
  return schema_format(value.is_string() ? base::parse_json(value.get<std::string>(), field) : value, field);
}

bool any_strict(const ToolRequest& tools) {
  return std::any_of(tools.tools.begin(), tools.tools.end(),
                     [](const Json& tool) { return base::json_member(tool.at("function"), "strict") == true; });
}

std::shared_ptr<const grammar::Grammar> tool_grammar(const ToolRequest& tools, const OutputFormat& format) {
  grammar::ToolCallOptions options{.tools = {},
                                   .mode = tools.choice.mode == ToolChoice::Mode::kRequired
                                               ? grammar::ToolCallOptions::Mode::kRequired
                                               : grammar::ToolCallOptions::Mode::kAuto,
                                   .only = tools.choice.name,
                                   .parallel = tools.parallel,
                                   .leading_newlines = kLeadingNewlines};
  for (const Json& tool : tools.tools) {
    const Json& function = tool.at("function");
    options.tools.push_back({.name = function.at("name").get<std::string>(),
                             .parameters = base::json_member(function, "parameters"),
                             .strict = base::json_member(function, "strict") == true});
  }
  if (format.kind == OutputFormat::Kind::kGrammar) base::bad_input(format.field, "cannot be joined with tools");
  if (format.kind == OutputFormat::Kind::kJsonSchema) options.content = format.schema;
  if (format.kind == OutputFormat::Kind::kJsonObject) options.content = Json{{"type", "object"}};
  options.content_source = format.field;
  return grammar::compile_tool_calls(options);
}

}  // namespace

OutputFormat read_format_object(const Json& format, const std::string& field) {
  if (format.is_null()) return {};
  if (!format.is_object()) base::bad_input(field, "must be an object, not {}", format.type_name());
  const auto type = string_field(format, "type", field + ".");
  if (!type) base::bad_input(field + ".type", "is missing");
  if (*type == "text") return {};
  const Json& nested = object_field(format, "json_schema", field + ".");
  const bool within = !nested.is_null();
  const Json& schema = base::json_member(within ? nested : format, "schema");
  const std::string place = field + (within ? ".json_schema.schema" : ".schema");
  if (*type == "json_object" && schema.is_null()) return {.kind = OutputFormat::Kind::kJsonObject, .field = field};
  if (*type == "json_schema" && schema.is_null()) base::bad_input(place, "is missing");
  if (*type == "json_schema" || *type == "json_object") return schema_format(schema, place);
  if (*type == "grammar") return grammar_format(base::json_member(format, "grammar"), field + ".grammar");
  base::bad_input(field + ".type", "must be text, json_object, json_schema or grammar");
}

OutputFormat read_output_format(const Json& body) {
  OutputFormat out;
  for (const char* field :
       {"response_format", "json_schema", "guided_json", "grammar", "guided_grammar", "guided_choice"}) {
    const Json& value = base::json_member(body, field);
    if (is_blank(value) && !value.is_structured()) continue;  // {} is a schema
    OutputFormat read = read_field(field, value);
    if (read.kind == OutputFormat::Kind::kText) continue;
    if (out.kind != OutputFormat::Kind::kText) base::bad_input(field, "cannot be joined with {}", out.field);
    out = std::move(read);
  }
  return out;
}

bool forces_something(const ToolRequest& tools, const OutputFormat& format) {
  if (format.kind != OutputFormat::Kind::kText) return true;
  if (tools.tools.is_null() || tools.choice.mode == ToolChoice::Mode::kNone) return false;
  return tools.choice.mode == ToolChoice::Mode::kRequired || any_strict(tools);
}

std::shared_ptr<const grammar::Grammar> answer_grammar(const ToolRequest& tools, const OutputFormat& format) {
  const bool calls = !tools.tools.is_null() && tools.choice.mode != ToolChoice::Mode::kNone;
  if (calls) return tool_grammar(tools, format);
  const int leading_newlines = format.blank_lines ? kLeadingNewlines : 0;
  switch (format.kind) {
    case OutputFormat::Kind::kText:
      break;
    case OutputFormat::Kind::kJsonObject:
      return grammar::compile_json_object({.source = format.field, .leading_newlines = leading_newlines});
    case OutputFormat::Kind::kJsonSchema:
      return grammar::compile_json_schema(format.schema,
                                          {.source = format.field, .leading_newlines = leading_newlines});
    case OutputFormat::Kind::kGrammar:
      return grammar::compile_ebnf(format.grammar, leading_newlines);
  }
  return nullptr;
}

}  // namespace tandem::serve
