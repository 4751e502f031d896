#include "serve/openai/response_output.h"

#include <utility>

#include "serve/openai/response_items.h"

namespace tandem::serve {

using base::Json;

namespace {

Json response_object(const ResponseContext& context, const char* status, Json output) {
  Json out = {{"id", context.identity.id},
              {"object", "response"},
              {"created_at", context.identity.created},
              {"status", status},
              {"error", nullptr},
              {"incomplete_details", nullptr},
              {"model", context.identity.model},
              {"output", std::move(output)},
              {"usage", nullptr}};
  out.update(context.echo);
  return out;
}

Json usage_json(const engine::Outcome& outcome) {
  return {{"input_tokens", outcome.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", outcome.cached_tokens}}},
          {"output_tokens", outcome.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", outcome.reasoning_tokens}}},
          {"total_tokens", outcome.prompt_tokens + outcome.completion_tokens}};
}

}  // namespace

Json reasoning_item(const ResponseContext& context, const std::string& id, const std::string& text,
                    const char* status) {
  Json out = {{"id", id}, {"type", "reasoning"}, {"status", status}, {"summary", Json::array()}};
  if (!text.empty()) {
    const char* type = context.summarised ? "summary_text" : "reasoning_text";
    out[context.summarised ? "summary" : "content"] = Json::array({{{"type", type}, {"text", text}}});
  }
  if (context.carries_reasoning)
    out["encrypted_content"] = text.empty() ? Json(nullptr) : Json(carried_reasoning(text));
  return out;
}

Json output_text_part(const std::string& text, const Json& logprobs) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", logprobs}};
}

Json message_item(const std::string& id, const std::string& text, const Json& logprobs, const char* status) {
  return {{"id", id},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", Json::array({output_text_part(text, logprobs)})}};
}

ResponseCall new_response_call(const ResponseContext& context, const std::string& shown) {
  const auto known = context.tools.find(shown);
  ResponseTool tool = known == context.tools.end() ? ResponseTool{.name = shown} : known->second;
  return {.id = random_id(tool.custom ? "ctc_" : "fc_"), .call_id = random_id("call_"), .tool = std::move(tool)};
}

Json call_item(const ResponseCall& call, const std::string& text, const char* status) {
  Json out = {{"id", call.id},          {"type", call.tool.custom ? "custom_tool_call" : "function_call"},
              {"status", status},       {"call_id", call.call_id},
              {"name", call.tool.name}, {call.tool.custom ? "input" : "arguments", text}};
  if (!call.tool.name_space.empty()) out["namespace"] = call.tool.name_space;
  return out;
}

Json response_in_progress(const ResponseContext& context) {
  return response_object(context, "in_progress", Json::array());
}

bool is_incomplete(const engine::Outcome& outcome) {
  return outcome.reason == engine::FinishReason::kLength || outcome.reason == engine::FinishReason::kRepeat;
}

Json response_ended(const ResponseContext& context, const engine::Outcome& outcome, Json output) {
  const bool incomplete = is_incomplete(outcome);
  Json out = response_object(context, incomplete ? "incomplete" : "completed", std::move(output));
  if (incomplete) {
    const bool length = outcome.reason == engine::FinishReason::kLength;
    out["incomplete_details"] = {{"reason", length ? "max_output_tokens" : engine::finish_reason_name(outcome.reason)}};
  } else {
    out["completed_at"] = unix_seconds();
  }
  out["usage"] = usage_json(outcome);
  return out;
}

Json response_failed(const ResponseContext& context, const ApiError& error, Json output) {
  Json out = response_object(context, "failed", std::move(output));
  out["error"] = {{"code", error.status >= 500 || error.code.empty() ? "server_error" : error.code},
                  {"message", error.message}};
  return out;
}

}  // namespace tandem::serve
