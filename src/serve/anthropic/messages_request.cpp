#include "serve/anthropic/messages_request.h"

#include <utility>

#include "serve/anthropic/conversation.h"
#include "serve/anthropic/tool_set.h"
#include "serve/fields.h"
#include "serve/sampling_fields.h"
#include "serve/thinking.h"

namespace tandem::serve {

using base::Json;

namespace {

// {"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"}.
void read_tool_choice(const Json& body, ToolRequest& tools) {
  const Json& choice = object_field(body, "tool_choice");
  if (choice.is_null()) return;
  const std::string type = string_field(choice, "type", "tool_choice.").value_or("auto");
  if (type == "none") {
    tools.choice.mode = ToolChoice::Mode::kNone;
  } else if (type == "any" || type == "tool") {
    tools.choice.mode = ToolChoice::Mode::kRequired;
  } else if (type != "auto") {
    base::bad_input("tool_choice.type", "must be auto, any, tool or none");
  }
  if (type == "tool") {
    const auto name = string_field(choice, "name", "tool_choice.");
    if (!name || name->empty()) base::bad_input("tool_choice.name", "is missing");
    tools.choice.name = *name;
  }
  tools.parallel = !bool_field(choice, "disable_parallel_tool_use", "tool_choice.").value_or(false);
  check_choice(tools, "tool_choice");
}

// As in Anthropic's API the model thinks only where the request says so. An effort alone does not: Claude Code sends
// one with requests for a title, which must come at once.
void read_thinking_fields(const Json& body, const Json& output_config, engine::Request& request) {
  text::TemplateOptions& options = request.template_options;
  options.thinking = false;
  read_thinking(body, request);
  const bool thinking = options.thinking;
  if (const auto effort = string_field(output_config, "effort", "output_config.")) {
    set_effort(*effort, "output_config.effort", request);
    options.thinking = thinking && options.thinking;
  }
}

// `output_format` is where betas had it.
OutputFormat read_output_form(const Json& body, const Json& output_config) {
  const Json& format = base::json_member(output_config, "format");
  if (!format.is_null()) return read_format_object(format, "output_config.format");
  return read_format_object(base::json_member(body, "output_format"), "output_format");
}

}  // namespace

MessagesRequest messages_request(const Json& body) {
  MessagesRequest out;
  out.model = string_field(body, "model").value_or("");
  out.stream = bool_field(body, "stream").value_or(false);

  ToolSet tools(base::json_member(body, "tools"));
  out.request.messages = read_conversation(body, tools);
  out.tools.tools = tools.callable();
  read_tool_choice(body, out.tools);
  if (out.tools.choice.mode != ToolChoice::Mode::kNone) out.request.tools = tools.shown_in_front();

  const Json& output_config = object_field(body, "output_config");
  out.format = read_output_form(body, output_config);
  read_thinking_fields(body, output_config, out.request);
  read_sampling(body, out.request);
  if (const Json& stop = base::json_member(body, "stop_sequences"); !stop.is_null()) {
    out.request.stop = read_stop(stop, "stop_sequences");
  }

  const auto& messages = out.request.messages;
  out.request.template_options.continue_last_message =
      !messages.empty() && messages.back().role == text::Role::kAssistant && messages.back().tool_calls.empty();
  return out;
}

}  // namespace tandem::serve
