#include "serve/tools.h"

#include <algorithm>
#include <fmt/format.h>

#include "serve/fields.h"

namespace tandem::serve {

using base::Json;

namespace {

constexpr size_t kMaxToolNameBytes = 256;

ToolChoice read_choice(const Json& body) {
  const Json& choice = base::json_member(body, "tool_choice");
  if (choice.is_null() || choice == "auto") return {};
  if (choice == "none") return {.mode = ToolChoice::Mode::kNone};
  if (choice == "required" || choice == "any") return {.mode = ToolChoice::Mode::kRequired};
  const Json& function = choice.is_object() ? base::json_member(choice, "function") : choice;
  if (!function.is_object()) {
    base::bad_input("tool_choice", R"(must be auto, none, required or {{"type": "function", "function": {{"name"}}}})");
  }
  const auto name = string_field(function, "name", "tool_choice.function.");
  if (!name) base::bad_input("tool_choice.function.name", "is missing");
  return {.mode = ToolChoice::Mode::kRequired, .name = *name};
}

}  // namespace

void check_tool_name(const Json& function, const std::string& path) {
  const auto name = string_field(function, "name", path + ".");
  if (!name || name->empty()) base::bad_input(path + ".name", "is missing");
  if (name->size() > kMaxToolNameBytes) {
    base::bad_input(path + ".name", "has {} bytes, at most {} are taken", name->size(), kMaxToolNameBytes);
  }
  const bool plain = std::all_of(name->begin(), name->end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > 0x20 && byte != 0x7f && c != '<' && c != '>';
  });
  if (!plain) base::bad_input(path + ".name", "may not hold spaces, control characters, < or >");
}

void check_tool(const Json& tool, const std::string& path) {
  if (!tool.is_object()) base::bad_input(path, "must be an object, not {}", tool.type_name());
  const auto type = string_field(tool, "type", path + ".");
  if (type && *type != "function") base::bad_input(path + ".type", "must be function");
  const Json& function = object_field(tool, "function", path + ".");
  if (function.is_null()) base::bad_input(path + ".function", "is missing");
  check_function(function, path + ".function");
}

void check_function(const Json& function, const std::string& path) {
  check_tool_name(function, path);
  (void)object_field(function, "parameters", path + ".");
  (void)bool_field(function, "strict", path + ".");
}

void check_choice(const ToolRequest& request, const std::string& field) {
  if (request.choice.mode != ToolChoice::Mode::kRequired) return;
  if (request.tools.is_null()) base::bad_input(field, "forces a call, but there are no tools");
  if (request.choice.name.empty()) return;
  const bool known = std::any_of(request.tools.begin(), request.tools.end(), [&](const Json& tool) {
    return tool.at("function").at("name") == request.choice.name;
  });
  if (!known) base::bad_input(field, "names {}, which is none of the tools", request.choice.name.substr(0, 100));
}

ToolRequest read_tools(const Json& body) {
  ToolRequest out;
  const Json& tools = base::json_member(body, "tools");
  if (!tools.is_null()) {
    if (!tools.is_array()) base::bad_input("tools", "must be an array, not {}", tools.type_name());
    for (size_t i = 0; i < tools.size(); ++i) check_tool(tools[i], fmt::format("tools[{}]", i));
    if (!tools.empty()) out.tools = tools;
  }
  out.choice = read_choice(body);
  check_choice(out, "tool_choice");
  out.parallel = bool_field(body, "parallel_tool_calls").value_or(true);
  return out;
}

}  // namespace tandem::serve
