// Whether the branches of a oneOf exclude each other: then it says the same as anyOf.
#include <algorithm>

#include "base/error.h"
#include "grammar/schema_reader.h"

namespace tandem::grammar {

namespace {

constexpr int kMaxDisjointDepth = 4;  // of properties that tell objects apart

}  // namespace

void SchemaReader::check_exclusive(const SchemaPlace& place) {
  if (!exclusive_.insert(place.schema).second) return;
  const base::Json& branches = (*place.schema)["oneOf"];
  for (size_t b = 1; b < branches.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (!disjoint(Conjunction{place.at("oneOf", a)}, Conjunction{place.at("oneOf", b)}, 0)) {
        base::bad_input(place.path + ".oneOf",
                        "alternatives {} and {} may both hold, which is not supported: anyOf allows it", a, b);
      }
    }
  }
}

bool SchemaReader::disjoint(const Conjunction& a, const Conjunction& b, int depth) {
  const std::vector<Conjunction> left = alternatives(a), right = alternatives(b);
  std::vector<SchemaFacts> others;
  for (const Conjunction& one : right) others.push_back(facts(one));
  for (const Conjunction& one : left) {
    const SchemaFacts own = facts(one);
    for (const SchemaFacts& other : others) {
      if (!disjoint(own, other, depth)) return false;
    }
  }
  return true;
}

bool SchemaReader::disjoint(const SchemaFacts& a, const SchemaFacts& b, int depth) {
  spend(a.path, 100);
  const text::JsonTypes common = a.types & b.types;
  if (common == text::JsonTypes()) return true;
  if (const SchemaFacts* listed = a.values ? &a : b.values ? &b : nullptr; listed != nullptr) {
    return std::none_of(listed->values->begin(), listed->values->end(),
                        [&](const base::Json& value) { return admits(a, value) && admits(b, value); });
  }
  if (!(common == text::JsonTypes(text::JsonTypes::kObject)) || depth >= kMaxDisjointDepth) return false;
  // A property that one of them requires, and whose values differ or that the other must not have.
  std::vector<std::string> names = a.required;
  names.insert(names.end(), b.required.begin(), b.required.end());
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return disjoint(property(a, name), property(b, name), depth + 1);
  });
}

}  // namespace tandem::grammar
