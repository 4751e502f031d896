// JSON read from outside: strict, bounded, with errors that name the place.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tandem::base {

// Keeps the order of keys: chat templates and artifact directories depend on it.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  int max_depth = 64;
  bool repeated_keys = false;  // of equal keys of an object the last one counts, in the place of the first
};

// Parses one JSON value and nothing after it. Refuses duplicate keys at any level unless they may be repeated, nesting
// beyond the limit, and bytes that are not UTF-8; the Error's source is `source` and its message tells the byte
// position.
Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});

// Typed access to a member of an object: an Error names `source`, the key and what was found where it is absent or of
// another type. The variants with `fallback` take null and absence as the fallback.
int64_t json_int(const Json& object, const char* key, const std::string& source);
int64_t json_int(const Json& object, const char* key, int64_t fallback, const std::string& source);
double json_number(const Json& object, const char* key, const std::string& source);
double json_number(const Json& object, const char* key, double fallback, const std::string& source);
bool json_bool(const Json& object, const char* key, bool fallback, const std::string& source);
std::string json_string(const Json& object, const char* key, const std::string& source);
std::string json_string(const Json& object, const char* key, const std::string& fallback, const std::string& source);
// The member, or null where the object has none.
const Json& json_member(const Json& object, const char* key);

}  // namespace tandem::base
