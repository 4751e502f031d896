// The tools of a request in the one form that all APIs' requests are read into, and which of them the answer may, must
// or must not call.
#pragma once

#include <string>

#include "base/json.h"

namespace tandem::serve {

struct ToolChoice {
  enum class Mode { kAuto, kNone, kRequired };
  Mode mode = Mode::kAuto;
  std::string name{};  // kRequired: this tool and no other; empty: any
};

// Null, or an array of {"type": "function", "function": {"name", "description", "parameters", "strict"}}: OpenAI's
// form, which is how the model is shown them.
struct ToolRequest {
  base::Json tools = nullptr;
  ToolChoice choice{};
  bool parallel = true;  // false: one call at most

  // What the model is shown: nothing where it may not call.
  base::Json shown() const { return choice.mode == ToolChoice::Mode::kNone ? base::Json(nullptr) : tools; }
};

// The object's `name`. It stands in the prompt as <function=NAME>, so it may hold nothing that ends or breaks this
// line.
void check_tool_name(const base::Json& function, const std::string& path);

// Checks one tool in the form above; `path` names it in messages ("tools[2]").
void check_tool(const base::Json& tool, const std::string& path);
// Its function object alone.
void check_function(const base::Json& function, const std::string& path);

// tools, tool_choice and parallel_tool_calls of OpenAI's chat completions. Throws base::Error{kBadInput}: also for a
// choice of a tool that is not there, and for a forced call without tools.
ToolRequest read_tools(const base::Json& body);

// Throws base::Error{kBadInput} with `field` as its source where a forced call has no tool.
void check_choice(const ToolRequest& request, const std::string& field);

}  // namespace tandem::serve
