#include "base/error.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/json_rules.h"
#include "grammar/leading_newlines.h"
#include "grammar/schema_rules.h"

namespace tandem::grammar {

std::shared_ptr<const Grammar> compile_json_schema(const base::Json& schema, const SchemaOptions& options) {
  AutomatonBuilder builder(options.source);
  JsonRules json(builder, options.pretty, std::nullopt);
  PatternCache patterns;
  SchemaReader reader(schema, options.source, options.loose, patterns);
  SchemaRules rules(json, reader);
  const RuleId value = rules.value({reader.root()});
  rules.finish();
  const RuleId root = after_newlines(builder, value, options.leading_newlines);
  return std::make_shared<const Grammar>(std::move(builder).finish(root, kMaxJsonDepth));
}

std::shared_ptr<const Grammar> compile_json_object(const SchemaOptions& options) {
  AutomatonBuilder builder(options.source);
  JsonRules json(builder, options.pretty, std::nullopt);
  const RuleId root = after_newlines(builder, json.any_object(), options.leading_newlines);
  return std::make_shared<const Grammar>(std::move(builder).finish(root, kMaxJsonDepth));
}

}  // namespace tandem::grammar
