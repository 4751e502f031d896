// Any JSON as a schema, of an answer and of a tool's parameters: refused with an Error, or a grammar without dead ends.
#include "base/error.h"
#include "base/json.h"
#include "grammar_walk.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  base::Json schema;
  try {
    schema = base::parse_json({reinterpret_cast<const char*>(data), size}, "schema");
  } catch (const base::Error&) {
    return 0;
  }
  for (const bool loose : {false, true}) {
    try {
      grammar::SchemaOptions options;
      options.loose = loose;
      fuzz::walk_masks(grammar::compile_json_schema(schema, options), data, size);
    } catch (const base::Error& error) {
      fuzz::require(error.kind() == base::ErrorKind::kBadInput);
    }
    try {
      grammar::ToolCallOptions options;
      options.mode = loose ? grammar::ToolCallOptions::Mode::kAuto : grammar::ToolCallOptions::Mode::kRequired;
      options.tools.push_back({"tool", schema, !loose});
      fuzz::walk_masks(grammar::compile_tool_calls(options), data, size);
    } catch (const base::Error& error) {
      fuzz::require(error.kind() == base::ErrorKind::kBadInput);
    }
  }
  return 0;
}
