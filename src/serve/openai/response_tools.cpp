#include "serve/openai/response_tools.h"

#include <fmt/format.h>
#include <unordered_set>
#include <utility>

#include "serve/fields.h"

namespace tandem::serve {

using base::Json;

namespace {

Json shown_function(const Json& function) {
  return {{"type", "function"}, {"function", function}};
}

// The flat form {"type", "name", "description", "parameters", "strict"} as a function object.
Json flat_function(const Json& tool, const std::string& path) {
  Json function = Json::object();
  for (const char* key : {"name", "description", "parameters"}) {
    if (const Json& value = base::json_member(tool, key); !value.is_null()) function[key] = value;
  }
  if (bool_field(tool, "strict", path + ".").value_or(false)) function["strict"] = true;
  check_function(function, path);
  return function;
}

// A custom tool's grammar is told to the model, not enforced.
Json custom_function(const Json& tool, const std::string& path) {
  std::string description = string_field(tool, "description", path + ".").value_or("");
  const Json& format = object_field(tool, "format", path + ".");
  if (const auto definition = string_field(format, "definition", path + ".format.")) {
    description += fmt::format("\n\nThe input follows this {} grammar:\n{}",
                               string_field(format, "syntax", path + ".format.").value_or("lark"), *definition);
  }
  Json function = {{"name", base::json_member(tool, "name")},
                   {"description", std::move(description)},
                   {"parameters",
                    {{"type", "object"},
                     {"properties", {{kCustomInput, {{"type", "string"}}}}},
                     {"required", Json::array({kCustomInput})}}}};
  check_function(function, path);
  return function;
}

class ToolReader {
 public:
  // One tool of `tools`, or of a namespace.
  void add(const Json& tool, const std::string& path, const std::string& name_space) {
    if (!tool.is_object()) base::bad_input(path, "must be an object, not {}", tool.type_name());
    const auto type = string_field(tool, "type", path + ".");
    if (!type) base::bad_input(path + ".type", "is missing");
    if (*type == "namespace" && name_space.empty()) add_namespace(tool, path);
    if (*type != "function" && *type != "custom") return;
    const bool custom = *type == "custom";
    Json function = custom ? custom_function(tool, path) : flat_function(tool, path);
    const auto name = function.at("name").get<std::string>();
    const std::string shown = shown_tool_name(name_space, name);
    if (!shown_.insert(shown).second) base::bad_input(path + ".name", "{} is there twice", shown);
    if (custom || !name_space.empty()) {
      out_.names[shown] = {.name = name, .name_space = name_space, .custom = custom};
      function["name"] = shown;
      check_function(function, path);
    }
    tools_.push_back(shown_function(function));
  }

  ResponseTools take() {
    if (!tools_.empty()) out_.request.tools = std::move(tools_);
    return std::move(out_);
  }

 private:
  void add_namespace(const Json& tool, const std::string& path) {
    const auto name = string_field(tool, "name", path + ".");
    if (!name || name->empty()) base::bad_input(path + ".name", "is missing");
    const Json& nested = base::json_member(tool, "tools");
    if (nested.is_null()) return;
    if (!nested.is_array()) base::bad_input(path + ".tools", "must be an array, not {}", nested.type_name());
    for (size_t i = 0; i < nested.size(); ++i) add(nested[i], fmt::format("{}.tools[{}]", path, i), *name);
  }

  ResponseTools out_;
  Json tools_ = Json::array();
  std::unordered_set<std::string> shown_;
};

// The name that {"type": "function" | "custom", "name", "namespace"} is shown under; empty for other types.
std::string chosen_name(const Json& choice, const std::string& path) {
  const auto type = string_field(choice, "type", path + ".");
  if (type != "function" && type != "custom") return {};
  const auto name = string_field(choice, "name", path + ".");
  if (!name || name->empty()) base::bad_input(path + ".name", "is missing");
  return shown_tool_name(string_field(choice, "namespace", path + ".").value_or(""), *name);
}

ToolChoice::Mode choice_mode(const Json& mode, const std::string& field) {
  if (mode.is_null() || mode == "auto") return ToolChoice::Mode::kAuto;
  if (mode == "none") return ToolChoice::Mode::kNone;
  if (mode == "required") return ToolChoice::Mode::kRequired;
  base::bad_input(field, "must be auto, none or required");
}

// {"type": "allowed_tools", "mode", "tools"}: the others are not shown.
void allow_only(const Json& choice, ToolRequest& request) {
  request.choice.mode = choice_mode(base::json_member(choice, "mode"), "tool_choice.mode");
  const Json& allowed = base::json_member(choice, "tools");
  if (!allowed.is_array()) base::bad_input("tool_choice.tools", "must be an array, not {}", allowed.type_name());
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < allowed.size(); ++i) {
    const std::string path = fmt::format("tool_choice.tools[{}]", i);
    if (!allowed[i].is_object()) base::bad_input(path, "must be an object, not {}", allowed[i].type_name());
    names.insert(chosen_name(allowed[i], path));
  }
  Json kept = Json::array();
  for (const Json& tool : request.tools) {
    if (names.contains(tool.at("function").at("name").get<std::string>())) kept.push_back(tool);
  }
  request.tools = kept.empty() ? Json(nullptr) : std::move(kept);
}

void read_response_choice(const Json& choice, ToolRequest& request) {
  if (choice.is_object()) {
    if (base::json_member(choice, "type") == "allowed_tools") {
      allow_only(choice, request);
    } else {
      request.choice = {.mode = ToolChoice::Mode::kRequired, .name = chosen_name(choice, "tool_choice")};
      if (request.choice.name.empty()) {
        base::bad_input("tool_choice.type", "must be function, custom or allowed_tools: no other tool can be forced");
      }
    }
  } else {
    request.choice.mode = choice_mode(choice, "tool_choice");
  }
  check_choice(request, "tool_choice");
}

}  // namespace

std::string shown_tool_name(const std::string& name_space, const std::string& name) {
  return name_space.empty() ? name : name_space + "__" + name;
}

std::string custom_tool_input(const std::string& arguments) {
  try {
    const Json object = base::parse_json(arguments, "arguments");
    if (const Json& input = base::json_member(object, kCustomInput); input.is_string()) return input.get<std::string>();
    // The model may have named the parameter in its own way.
    if (object.is_object() && object.size() == 1 && object.front().is_string())
      return object.front().get<std::string>();
    return object.empty() ? "" : arguments;
  } catch (const base::Error&) {
    return arguments;
  }
}

ResponseTools read_response_tools(const Json& body) {
  ToolReader reader;
  const Json& tools = base::json_member(body, "tools");
  if (!tools.is_null() && !tools.is_array()) base::bad_input("tools", "must be an array, not {}", tools.type_name());
  for (size_t i = 0; i < tools.size(); ++i) reader.add(tools[i], fmt::format("tools[{}]", i), "");
  ResponseTools out = reader.take();
  read_response_choice(base::json_member(body, "tool_choice"), out.request);
  out.request.parallel = bool_field(body, "parallel_tool_calls").value_or(true);
  return out;
}

}  // namespace tandem::serve
