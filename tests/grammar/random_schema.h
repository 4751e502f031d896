// Random schemas, values of them, and a validator that shares no code with the grammars.
#pragma once

#include <random>
#include <string>
#include <string_view>

#include "base/json.h"

namespace tandem::grammar {

class RandomSchema {
 public:
  explicit RandomSchema(std::mt19937& random) : random_(random) {}

  base::Json document();  // a schema with $defs
  // A schema of an object with properties, as tools have it.
  base::Json parameters();
  // A value, most often one that the schema admits; properties come in the schema's order.
  base::Json value(const base::Json& document);
  // The value with one thing changed somewhere.
  base::Json changed(base::Json value);

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  base::Json schema(int depth);
  base::Json object_schema(int depth);
  base::Json string_schema();
  base::Json number_schema(bool whole);
  base::Json value_of(const base::Json& schema, const base::Json& document, int depth);
  base::Json any_value(int depth);
  std::string any_text(int longest);

  std::mt19937& random_;
};

// Whether a schema admits a value, and its properties come in the schema's order before other names, as a grammar wants
// them.
bool is_valid(const base::Json& schema, const base::Json& document, const base::Json& value);

}  // namespace tandem::grammar
