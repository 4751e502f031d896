// What JSON type a tool's parameter takes, and how the text a model wrote for it becomes a value of that type.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json.h"

namespace tandem::text {

// A set of JSON types.
class JsonTypes {
 public:
  enum Type : uint8_t { kNull = 1, kBoolean = 2, kInteger = 4, kNumber = 8, kString = 16, kArray = 32, kObject = 64 };

  constexpr JsonTypes() = default;
  constexpr JsonTypes(Type type) : bits_(type) {}
  static constexpr JsonTypes all() { return JsonTypes(uint8_t{127}); }

  constexpr bool has(Type type) const { return (bits_ & type) != 0; }
  constexpr JsonTypes operator|(JsonTypes other) const { return JsonTypes(static_cast<uint8_t>(bits_ | other.bits_)); }
  // An integer is a number, so a schema may name the one and the other.
  constexpr JsonTypes operator&(JsonTypes other) const {
    const int both = bits_ & other.bits_;
    const bool integers = (has(kInteger) && other.has(kNumber)) || (has(kNumber) && other.has(kInteger));
    return JsonTypes(static_cast<uint8_t>(both | (integers ? kInteger : 0)));
  }
  constexpr bool operator==(const JsonTypes&) const = default;

 private:
  constexpr explicit JsonTypes(uint8_t bits) : bits_(bits) {}
  uint8_t bits_ = 0;
};

// The tools of a request, by name. Immutable once built.
class ToolSchemas {
 public:
  // Null, or an array of tools: {"type": "function", "function": {"name", "parameters"}} or the inner object alone.
  // Anything else in it is passed over.
  explicit ToolSchemas(base::Json tools);

  bool empty() const { return tools_.empty(); }
  bool has(const std::string& name) const { return tools_.contains(name); }

  // The types that the schema of `parameter` admits; only kString where it says nothing: unknown tool or parameter, no
  // type named, a reference that leads nowhere, or a schema too large to follow.
  JsonTypes types(const std::string& name, const std::string& parameter) const;

 private:
  std::unordered_map<std::string, base::Json> tools_;  // the parameters' schema
};

// What `text` says as JSON (or as True or False) where that is of one of `types`; else the text itself, as a string. A
// whole number of more than 64 bits stays text, because it would lose digits.
base::Json typed_value(const std::string& text, JsonTypes types);

}  // namespace tandem::text
