// The tools of a Responses request, and the names under which the model calls them.
#pragma once

#include <string>
#include <unordered_map>

#include "base/json.h"
#include "serve/tools.h"

namespace tandem::serve {

// A tool as the client knows it.
struct ResponseTool {
  std::string name;
  std::string name_space{};  // of the `namespace` tool that holds it; empty: none
  bool custom = false;       // takes a text instead of arguments
};

// By the name that the model is shown, where that is not all there is to say.
using ResponseToolNames = std::unordered_map<std::string, ResponseTool>;

// A tool of a namespace is shown as NAMESPACE__NAME.
std::string shown_tool_name(const std::string& name_space, const std::string& name);

// What a custom tool is given: the model is shown a function with one string parameter of this name.
inline constexpr const char* kCustomInput = "input";
// The text for a custom tool from the arguments of such a call.
std::string custom_tool_input(const std::string& arguments);

struct ResponseTools {
  ToolRequest request;
  ResponseToolNames names;
};

// tools, tool_choice and parallel_tool_calls. Tools that the server would have to run itself (web_search and others)
// and unknown ones are left out. Throws base::Error{kBadInput} whose source is the field.
ResponseTools read_response_tools(const base::Json& body);

}  // namespace tandem::serve
