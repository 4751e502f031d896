#include "serve/anthropic/tool_set.h"

#include <fmt/format.h>
#include <utility>

#include "serve/fields.h"
#include "serve/tools.h"
#include "text/printable.h"
#include "text/python_json.h"

namespace tandem::serve {

using base::Json;

namespace {

bool is_server_tool(const Json& tool, const std::string& path) {
  const auto type = string_field(tool, "type", path + ".");
  return type && *type != "custom" && base::json_member(tool, "input_schema").is_null();
}

// In OpenAI's form. Only what describes the tool: cache_control and its like move between requests.
Json openai_tool(const Json& tool, const std::string& path) {
  check_tool_name(tool, path);
  Json function = {{"name", tool.at("name")}};
  if (auto description = string_field(tool, "description", path + ".")) {
    function["description"] = std::move(*description);
  }
  const Json& schema = object_field(tool, "input_schema", path + ".");
  if (!schema.is_null()) function["parameters"] = schema;
  if (bool_field(tool, "strict", path + ".").value_or(false)) function["strict"] = true;
  return {{"type", "function"}, {"function", std::move(function)}};
}

}  // namespace

ToolSet::ToolSet(const Json& tools) {
  if (tools.is_null()) return;
  if (!tools.is_array()) base::bad_input("tools", "must be an array, not {}", tools.type_name());
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) base::bad_input(path, "must be an object, not {}", tools[i].type_name());
    if (is_server_tool(tools[i], path)) continue;
    Tool& tool = put(openai_tool(tools[i], path));
    if (bool_field(tools[i], "defer_loading", path + ".").value_or(false)) continue;
    front_.push_back(tool.definition);
    tool.shown = true;
    tool.call_order = next_order_++;
  }
}

// Of two tools of one name the later one counts.
ToolSet::Tool& ToolSet::put(Json definition) {
  const auto name = definition.at("function").at("name").get<std::string>();
  return tools_.insert_or_assign(name, Tool{.definition = std::move(definition)}).first->second;
}

std::string ToolSet::announce(Tool& tool) {
  if (tool.call_order == 0) tool.call_order = next_order_++;
  if (tool.shown) {
    return fmt::format("The tool {} can be called.",
                       text::printable(tool.definition.at("function").at("name").get<std::string>()));
  }
  tool.shown = true;
  return "This tool can be called from now on, like those in the list of tools:\n" + text::python_json(tool.definition);
}

std::string ToolSet::add(const std::string& name) {
  const auto found = tools_.find(name);
  return found == tools_.end() ? fmt::format("There is no tool {}.", text::printable(name)) : announce(found->second);
}

std::string ToolSet::add_definition(const Json& tool, const std::string& path) {
  return is_server_tool(tool, path) ? "" : announce(put(openai_tool(tool, path)));
}

std::string ToolSet::remove(const std::string& name) {
  if (const auto found = tools_.find(name); found != tools_.end()) found->second.call_order = 0;
  return fmt::format("The tool {} can no longer be called.", text::printable(name));
}

// The block of tools also tells how a call is written, so there must be one where anything can be called.
Json ToolSet::shown_in_front() const {
  return front_.empty() ? callable() : front_;
}

Json ToolSet::callable() const {
  std::map<size_t, const Json*> ordered;
  for (const auto& [name, tool] : tools_) {
    if (tool.call_order != 0) ordered.emplace(tool.call_order, &tool.definition);
  }
  if (ordered.empty()) return nullptr;
  Json out = Json::array();
  for (const auto& [order, definition] : ordered) out.push_back(*definition);
  return out;
}

}  // namespace tandem::serve
