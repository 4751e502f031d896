#include "tests/grammar/random_schema.h"

#include <bit>
#include <cmath>
#include <iterator>
#include <regex>
#include <vector>

namespace tandem::grammar {

namespace {

using base::Json;

struct KnownPattern {
  const char* pattern;
  std::vector<const char*> matches;
};
const KnownPattern kPatterns[] = {
    {"^[a-z]+$", {"a", "xyz", "hello"}},  {"^\\d{3}-[A-F]?$", {"123-", "000-F"}},
    {"b.d", {"abcde", "b-d", "x bud y"}}, {"^(ab|c)*$", {"", "abc", "ccab"}},
    {"x$|^y", {"ax", "yb", "x"}},         {"^[^/]+/[^/]*$", {"a/b", "some \"text\"/", "a\\/é"}},
};

size_t length_of(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

// Of UTF-8: a pattern's point is a character, not a byte.
std::wstring characters(const std::string& text) {
  std::wstring out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) == 0x80) {
      out.back() = static_cast<wchar_t>(static_cast<uint32_t>(out.back()) << 6 | (byte & 0x3FU));
    } else {
      out.push_back(static_cast<wchar_t>(byte < 0x80 ? byte : byte & (0x7FU >> std::countl_one(byte))));
    }
  }
  return out;
}

bool is_multiple(const Json& value, const Json& factor) {
  if (value.is_number_integer() && factor.is_number_integer()) return value.get<int64_t>() % factor.get<int64_t>() == 0;
  const double ratio = value.get<double>() / factor.get<double>();
  return std::abs(ratio - std::round(ratio)) < 1e-7;
}

// A grammar takes a constant as it stands: 1.0 is not 1.
bool is_same(const Json& a, const Json& b) {
  return a.dump() == b.dump();
}

bool has_type(const std::string& type, const Json& value) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  return value.is_object();
}

bool valid_object(const Json& schema, const Json& document, const Json& value) {
  for (const Json& name : schema.value("required", Json::array())) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  const Json properties = schema.value("properties", Json::object());
  std::ptrdiff_t next = 0;  // the first of the properties that may still come
  for (auto item = value.begin(); item != value.end(); ++item) {
    const auto known = properties.find(item.key());  // the end for another name
    const std::ptrdiff_t place = std::distance(properties.begin(), known);
    if (place < next) return false;
    next = known == properties.end() ? place : place + 1;
    const Json& own = known != properties.end()                 ? *known
                      : schema.contains("additionalProperties") ? schema["additionalProperties"]
                                                                : Json(true);
    if (!is_valid(own, document, *item)) return false;
  }
  return true;
}

bool valid_array(const Json& schema, const Json& document, const Json& value) {
  if (value.size() < schema.value("minItems", size_t{0})) return false;
  if (value.size() > schema.value("maxItems", SIZE_MAX)) return false;
  const Json first = schema.value("prefixItems", Json::array());
  for (size_t i = 0; i < value.size(); ++i) {
    const Json own = i < first.size() ? first[i] : schema.contains("items") ? schema["items"] : Json(true);
    if (!is_valid(own, document, value[i])) return false;
  }
  return true;
}

}  // namespace

bool is_valid(const Json& schema, const Json& document, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) {
    const std::string pointer = schema["$ref"].get<std::string>().substr(1);
    if (!is_valid(document.at(Json::json_pointer(pointer)), document, value)) return false;
  }
  if (schema.contains("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    bool any = false;
    for (const Json& type : types) any |= has_type(type.get<std::string>(), value);
    if (!any) return false;
  }
  if (schema.contains("const") && !is_same(schema["const"], value)) return false;
  if (schema.contains("enum")) {
    bool any = false;
    for (const Json& one : schema["enum"]) any |= is_same(one, value);
    if (!any) return false;
  }
  if (schema.contains("anyOf")) {
    bool any = false;
    for (const Json& one : schema["anyOf"]) any |= is_valid(one, document, value);
    if (!any) return false;
  }
  for (const Json& one : schema.value("allOf", Json::array())) {
    if (!is_valid(one, document, value)) return false;
  }
  if (value.is_number()) {
    const double number = value.get<double>();
    if (schema.contains("minimum") && number < schema["minimum"].get<double>()) return false;
    if (schema.contains("maximum") && number > schema["maximum"].get<double>()) return false;
    if (schema.contains("exclusiveMinimum") && number <= schema["exclusiveMinimum"].get<double>()) return false;
    if (schema.contains("exclusiveMaximum") && number >= schema["exclusiveMaximum"].get<double>()) return false;
    if (schema.contains("multipleOf") && !is_multiple(value, schema["multipleOf"])) return false;
  }
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    if (length_of(text) < schema.value("minLength", size_t{0})) return false;
    if (length_of(text) > schema.value("maxLength", SIZE_MAX)) return false;
    if (schema.contains("pattern") &&
        !std::regex_search(characters(text), std::wregex(characters(schema["pattern"].get<std::string>())))) {
      return false;
    }
  }
  if (value.is_array()) return valid_array(schema, document, value);
  return !value.is_object() || valid_object(schema, document, value);
}

Json RandomSchema::document() {
  Json result = schema(3);
  if (result.is_boolean()) result = Json::object();
  result["$defs"]["leaf"] = string_schema();
  result["$defs"]["tree"] = {
      {"type", "object"},
      {"properties",
       {{"name", {{"$ref", "#/$defs/leaf"}}},
        {"children", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}, {"maxItems", 2}}}}},
      {"required", {"name"}},
      {"additionalProperties", false}};
  return result;
}

Json RandomSchema::parameters() {
  Json result = object_schema(3);
  result["$defs"] = document()["$defs"];
  return result;
}

Json RandomSchema::string_schema() {
  Json result = {{"type", "string"}};
  switch (below(4)) {
    case 0:
      result["minLength"] = below(3);
      result["maxLength"] = 3 + below(4);
      break;
    case 1:
      result["pattern"] = kPatterns[static_cast<size_t>(below(std::size(kPatterns)))].pattern;
      break;
    case 2:
      if (below(2) == 0) result["enum"] = {"one", "two \"2\"", "", "true", "12", "null"};
      break;
    default:
      break;
  }
  return result;
}

Json RandomSchema::number_schema(bool whole) {
  Json result = {{"type", whole ? "integer" : "number"}};
  const double unit = whole ? 1 : 0.25;
  const double low = (below(400) - 200) * unit, high = low + (4 + below(300)) * unit;
  const auto put = [&](const char* key, double value) {
    if (whole) {
      result[key] = static_cast<int64_t>(value);
    } else {
      result[key] = value;
    }
  };
  if (below(2) == 0) put(below(2) == 0 ? "minimum" : "exclusiveMinimum", low);
  if (below(2) == 0) put(below(2) == 0 ? "maximum" : "exclusiveMaximum", high);
  if (below(4) == 0) put("multipleOf", whole ? 1 + below(4) : 0.5);
  return result;
}

Json RandomSchema::object_schema(int depth) {
  Json result = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
  constexpr const char* kNames[] = {"a", "ab", "name", "long name", "x\"y", "é"};
  for (const char* name : kNames) {
    if (below(2) == 0) continue;
    result["properties"][name] = schema(depth - 1);
    if (below(2) == 0) result["required"].push_back(name);
  }
  if (below(3) != 0) result["additionalProperties"] = below(2) == 0 ? Json(false) : schema(depth - 1);
  return result;
}

Json RandomSchema::schema(int depth) {
  switch (below(depth > 0 ? 12 : 6)) {
    case 0:
      return number_schema(true);
    case 1:
      return number_schema(false);
    case 2:
    case 3:
      return string_schema();
    case 4:
      return {{"type", below(2) == 0 ? Json("boolean") : Json({"integer", "null"})}};
    case 5:
      return below(2) == 0 ? Json{{"enum", {1, "1", nullptr, true, "text", 2.5}}} : Json{{"const", "only"}};
    case 6:
    case 7:
      return object_schema(depth);
    case 8: {
      Json result = {{"type", "array"}, {"items", schema(depth - 1)}};
      if (below(2) == 0) result["minItems"] = below(3);
      if (below(2) == 0) result["maxItems"] = 2 + below(3);
      if (below(3) == 0) result["prefixItems"] = {schema(depth - 1), schema(depth - 1)};
      return result;
    }
    case 9:
      return {{"anyOf", {schema(depth - 1), schema(depth - 1)}}};
    case 10:
      return {{"$ref", below(2) == 0 ? "#/$defs/tree" : "#/$defs/leaf"}};
    default:
      if (below(2) == 0) return Json::object();
      return {{"allOf", {number_schema(true), number_schema(true)}}, {"minimum", -5000}};
  }
}

std::string RandomSchema::any_text(int longest) {
  constexpr const char* kPieces[] = {"a", "b", "xy", " ", "é", "😀", "\"", "\\", "/", "\n", "\t", "<", "\x01", "1"};
  std::string text;
  for (int i = below(longest + 1); i > 0; --i) text += kPieces[static_cast<size_t>(below(std::size(kPieces)))];
  return text;
}

Json RandomSchema::any_value(int depth) {
  switch (below(depth > 0 ? 7 : 5)) {
    case 0:
      return nullptr;
    case 1:
      return below(2) == 0;
    case 2:
      return below(1000) - 500;
    case 3:
      return below(1000) / 8.0 + 0.125;
    case 4:
      return any_text(5);
    case 5: {
      Json list = Json::array();
      for (int i = below(3); i > 0; --i) list.push_back(any_value(depth - 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (int i = below(3); i > 0; --i) object["k" + any_text(2)] = any_value(depth - 1);
      return object;
    }
  }
}

Json RandomSchema::value(const Json& document) {
  Json result;
  for (int attempt = 0; attempt < 20; ++attempt) {
    result = value_of(document, document, 6);
    if (is_valid(document, document, result)) break;
  }
  return result;
}

Json RandomSchema::value_of(const Json& schema, const Json& document, int depth) {
  if (!schema.is_object()) return any_value(1);
  if (schema.contains("$ref")) {
    const std::string pointer = schema["$ref"].get<std::string>().substr(1);
    return value_of(document.at(Json::json_pointer(pointer)), document, depth - 1);
  }
  if (schema.contains("anyOf")) {
    return value_of(schema["anyOf"][static_cast<size_t>(below(static_cast<int>(schema["anyOf"].size())))], document,
                    depth - 1);
  }
  if (schema.contains("const")) return schema["const"];
  if (schema.contains("enum"))
    return schema["enum"][static_cast<size_t>(below(static_cast<int>(schema["enum"].size())))];
  if (schema.contains("allOf")) return below(1000) - 500;
  Json type = schema.value("type", Json());
  if (type.is_array()) type = type[static_cast<size_t>(below(static_cast<int>(type.size())))];
  if (type == "null") return nullptr;
  if (type == "boolean") return below(2) == 0;
  if (type == "integer") return below(1200) - 400;
  if (type == "number") return (below(1200) - 400) * 0.25 + (below(3) == 0 ? 0.0 : 0.25);
  if (type == "string") {
    for (const KnownPattern& known : kPatterns) {
      if (schema.value("pattern", "") == known.pattern) {
        return known.matches[static_cast<size_t>(below(static_cast<int>(known.matches.size())))];
      }
    }
    return any_text(6);
  }
  if (type == "array") {
    Json list = Json::array();
    const Json first = schema.value("prefixItems", Json::array());
    for (int i = depth > 0 ? below(5) : schema.value("minItems", 0); i > 0; --i) {
      list.push_back(value_of(list.size() < first.size() ? first[list.size()] : schema["items"], document, depth - 1));
    }
    return list;
  }
  if (type != "object") return any_value(2);
  Json object = Json::object();
  const Json required = schema.value("required", Json::array());
  for (auto item = schema["properties"].begin(); item != schema["properties"].end(); ++item) {
    const bool must = std::find(required.begin(), required.end(), Json(item.key())) != required.end();
    if (must || (depth > 0 && below(2) == 0)) object[item.key()] = value_of(*item, document, depth - 1);
  }
  const Json others = schema.value("additionalProperties", Json(true));
  for (int i = others == false || depth <= 0 ? 0 : below(3); i > 0; --i) {
    object["other " + any_text(2)] = value_of(others, document, depth - 1);
  }
  return object;
}

Json RandomSchema::changed(Json value) {
  Json* at = &value;
  while (at->is_structured() && !at->empty() && below(4) != 0) {
    at = &*std::next(at->begin(), below(static_cast<int>(at->size())));
  }
  if (at->is_array() && below(2) == 0) {
    at->push_back(any_value(1));
  } else if (at->is_object() && !at->empty() && below(2) == 0) {
    at->erase(std::next(at->begin(), below(static_cast<int>(at->size()))));
  } else if (at->is_number_integer()) {
    *at = at->get<int64_t>() + below(400) - 200;
  } else {
    *at = any_value(2);
  }
  return value;
}

}  // namespace tandem::grammar
