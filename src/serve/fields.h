// Typed members of a request's JSON object. Null counts as absent; an Error's source is the field's own name, which is
// how the client's error gets its `param`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace tandem::serve {

// The body as an object; an Error for anything else.
base::Json parse_object(const std::string& body);

// `path` stands before the key in messages: "chat_template_kwargs." or "".
std::optional<double> number_field(const base::Json& object, const char* key, const std::string& path = "");
std::optional<int64_t> int_field(const base::Json& object, const char* key, const std::string& path = "");
std::optional<bool> bool_field(const base::Json& object, const char* key, const std::string& path = "");
std::optional<std::string> string_field(const base::Json& object, const char* key, const std::string& path = "");
// Null, false, and empty strings, arrays and objects: what clients write where they ask for nothing.
bool is_blank(const base::Json& value);
// Null where absent.
const base::Json& object_field(const base::Json& object, const char* key, const std::string& path = "");

}  // namespace tandem::serve
