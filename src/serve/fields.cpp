#include "serve/fields.h"

namespace tandem::serve {

using base::Json;

namespace {

// An agent's request has some thousands; a body of the largest size could hold millions, each larger than its text.
constexpr size_t kMaxValues = 1'000'000;

// Refuses a body with more keys and values than that before any is made: in JSON each follows a bracket, a brace, a
// colon or a comma outside strings.
void check_values(const std::string& body) {
  size_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      if (c == '\\') ++i;
    } else if (c == ',' || c == '[' || c == '{' || c == ':') {
      ++values;
    }
  }
  if (values > kMaxValues) base::bad_input("request body", "holds more than {} keys and values", kMaxValues);
}

[[noreturn]] void wrong_type(const Json& value, const char* key, const std::string& path, const char* expected) {
  base::bad_input(path + key, "must be {}, not {}", expected, value.type_name());
}

}  // namespace

Json parse_object(const std::string& body) {
  if (body.empty()) base::bad_input("request body", "is empty; a JSON object is expected");
  check_values(body);
  Json object = base::parse_json(body, "request body");
  if (!object.is_object()) base::bad_input("request body", "must be a JSON object, not {}", object.type_name());
  return object;
}

std::optional<double> number_field(const Json& object, const char* key, const std::string& path) {
  const Json& value = base::json_member(object, key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_number()) wrong_type(value, key, path, "a number");
  return value.get<double>();
}

std::optional<int64_t> int_field(const Json& object, const char* key, const std::string& path) {
  const Json& value = base::json_member(object, key);
  if (value.is_null()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) {
    base::bad_input(path + key, "{} is too large", value.get<uint64_t>());
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number()) wrong_type(value, key, path, "a whole number");
  const double number = value.get<double>();
  // Within these bounds every double that is whole is that very integer.
  if (!(number > -9e15 && number < 9e15) || number != static_cast<double>(static_cast<int64_t>(number))) {
    base::bad_input(path + key, "must be a whole number, not {}", number);
  }
  return static_cast<int64_t>(number);
}

std::optional<bool> bool_field(const Json& object, const char* key, const std::string& path) {
  const Json& value = base::json_member(object, key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean()) wrong_type(value, key, path, "true or false");
  return value.get<bool>();
}

std::optional<std::string> string_field(const Json& object, const char* key, const std::string& path) {
  const Json& value = base::json_member(object, key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) wrong_type(value, key, path, "a string");
  return value.get<std::string>();
}

bool is_blank(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_structured() ? value.empty() : value.is_null() || value == false;
}

const Json& object_field(const Json& object, const char* key, const std::string& path) {
  const Json& value = base::json_member(object, key);
  if (!value.is_null() && !value.is_object()) wrong_type(value, key, path, "an object");
  return value;
}

}  // namespace tandem::serve
