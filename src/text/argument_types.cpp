#include "text/argument_types.h"

#include <utility>

#include "base/error.h"
#include "text/whitespace.h"

namespace tandem::text {

namespace {

using base::Json;

JsonTypes type_named(const Json& name) {
  constexpr std::pair<std::string_view, JsonTypes::Type> kNames[] = {
      {"null", JsonTypes::kNull},     {"boolean", JsonTypes::kBoolean}, {"integer", JsonTypes::kInteger},
      {"number", JsonTypes::kNumber}, {"string", JsonTypes::kString},   {"array", JsonTypes::kArray},
      {"object", JsonTypes::kObject}};
  for (const auto& [known, type] : kNames) {
    if (name.is_string() && name.get_ref<const std::string&>() == known) return type;
  }
  return JsonTypes::all();
}

JsonTypes type_of_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return JsonTypes::kNull;
    case Json::value_t::boolean:
      return JsonTypes::kBoolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return JsonTypes::kInteger;
    case Json::value_t::number_float:
      return JsonTypes::kNumber;
    case Json::value_t::string:
      return JsonTypes::kString;
    case Json::value_t::array:
      return JsonTypes::kArray;
    default:
      return JsonTypes::kObject;
  }
}

// Walks one schema. References may be cyclic and fan out, so depth and steps are bounded; beyond them nothing is known.
class SchemaWalk {
 public:
  explicit SchemaWalk(const Json& root) : root_(root) {}

  JsonTypes types(const Json& schema, int depth = 0) {
    if (!schema.is_object() || exhausted(depth)) return JsonTypes::all();
    JsonTypes found = JsonTypes::all();
    if (const Json* target = referenced(schema)) found = found & types(*target, depth + 1);
    if (const Json& type = base::json_member(schema, "type"); !type.is_null()) found = found & types_named(type);
    if (const auto value = schema.find("const"); value != schema.end()) found = found & type_of_value(*value);
    if (const Json& values = base::json_member(schema, "enum"); values.is_array()) {
      JsonTypes any;
      for (const Json& value : values) any = any | type_of_value(value);
      found = found & any;
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      const Json& branches = base::json_member(schema, key);
      if (!branches.is_array()) continue;
      JsonTypes any;
      for (const Json& branch : branches) any = any | types(branch, depth + 1);
      found = found & any;
    }
    if (const Json& branches = base::json_member(schema, "allOf"); branches.is_array()) {
      for (const Json& branch : branches) found = found & types(branch, depth + 1);
    }
    if (found == JsonTypes::all()) found = types_implied(schema);
    return base::json_member(schema, "nullable") == true ? found | JsonTypes::kNull : found;
  }

  // The schema of one property, sought through references and combinations; null where there is none.
  const Json* property(const Json& schema, const std::string& name, int depth = 0) {
    if (!schema.is_object() || exhausted(depth)) return nullptr;
    const Json& properties = base::json_member(schema, "properties");
    if (const auto found = properties.is_object() ? properties.find(name) : properties.end();
        properties.is_object() && found != properties.end()) {
      return &*found;
    }
    if (const Json* target = referenced(schema)) {
      if (const Json* found = property(*target, name, depth + 1)) return found;
    }
    for (const char* key : {"allOf", "anyOf", "oneOf"}) {
      for (const Json& branch : base::json_member(schema, key)) {
        if (const Json* found = property(branch, name, depth + 1)) return found;
      }
    }
    const Json& others = base::json_member(schema, "additionalProperties");
    return others.is_object() ? &others : nullptr;
  }

 private:
  bool exhausted(int depth) {
    constexpr int kMaxDepth = 32, kMaxSteps = 10'000;
    return depth > kMaxDepth || ++steps_ > kMaxSteps;
  }

  static JsonTypes types_named(const Json& type) {
    if (!type.is_array()) return type_named(type);
    JsonTypes any;
    for (const Json& name : type) any = any | type_named(name);
    return any;
  }

  // Keywords that apply to one type only, in schemas that leave out the type itself.
  static JsonTypes types_implied(const Json& schema) {
    if (schema.contains("properties")) return JsonTypes::kObject;
    if (schema.contains("items")) return JsonTypes::kArray;
    return JsonTypes::all();
  }

  const Json* referenced(const Json& schema) const {
    const Json& reference = base::json_member(schema, "$ref");
    if (!reference.is_string()) return nullptr;
    const auto& text = reference.get_ref<const std::string&>();
    if (!text.starts_with('#')) return nullptr;
    try {
      const Json::json_pointer pointer(text.substr(1));
      return root_.contains(pointer) ? &root_.at(pointer) : nullptr;
    } catch (const Json::exception&) {
      return nullptr;  // not a pointer
    }
  }

  const Json& root_;
  int steps_ = 0;
};

// The text as JSON, or nothing. Large integers would lose digits as JSON numbers: they are not taken. A model may name
// a key twice, which makes a text of the whole no better.
bool parse(std::string_view text, Json& out) {
  try {
    out = base::parse_json(text, "argument", {.repeated_keys = true});
  } catch (const base::Error&) {
    return false;
  }
  return !out.is_number_float() || text.find_first_of(".eE") != std::string_view::npos;
}

}  // namespace

ToolSchemas::ToolSchemas(Json tools) {
  if (!tools.is_array()) return;
  for (Json& tool : tools) {
    if (!tool.is_object()) continue;
    Json& function = tool.contains("function") && tool["function"].is_object() ? tool["function"] : tool;
    const Json& name = base::json_member(function, "name");
    if (name.is_string()) tools_.emplace(name.get<std::string>(), base::json_member(function, "parameters"));
  }
}

JsonTypes ToolSchemas::types(const std::string& name, const std::string& parameter) const {
  const auto tool = tools_.find(name);
  if (tool == tools_.end()) return JsonTypes::kString;
  SchemaWalk walk(tool->second);
  const Json* schema = walk.property(tool->second, parameter);
  const JsonTypes found = schema == nullptr ? JsonTypes::all() : walk.types(*schema);
  // Nothing known, or a schema that admits nothing.
  return found == JsonTypes::all() || found == JsonTypes() ? JsonTypes(JsonTypes::kString) : found;
}

Json typed_value(const std::string& text, JsonTypes types) {
  if (types == JsonTypes(JsonTypes::kString)) return text;
  const std::string_view spelled = strip(text);
  if (types.has(JsonTypes::kBoolean)) {
    if (spelled == "true" || spelled == "True") return true;  // Python's spelling is a common slip
    if (spelled == "false" || spelled == "False") return false;
  }
  Json value;
  if (!parse(spelled, value)) return text;
  if (value.is_number_float() && types.has(JsonTypes::kInteger) && !types.has(JsonTypes::kNumber)) {
    // 5.0 is an integer to JSON Schema.
    const double number = value.get<double>();
    if (!(number >= -9e15 && number <= 9e15) || number != static_cast<double>(static_cast<int64_t>(number)))
      return text;
    return static_cast<int64_t>(number);
  }
  JsonTypes own = type_of_value(value);
  if (own == JsonTypes(JsonTypes::kInteger)) own = own | JsonTypes::kNumber;
  return (own & types) == JsonTypes() || value.is_string() ? Json(text) : value;
}

}  // namespace tandem::text
