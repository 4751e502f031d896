#include "serve/openai/response_answer.h"

#include <utility>

namespace tandem::serve {

using base::Json;
using text::OutputEvent;

namespace {

const char* ended_status(const engine::Outcome& outcome) {
  return is_incomplete(outcome) ? "incomplete" : "completed";
}

Json logprob_list(const std::vector<engine::StepLogprobs>& steps, const text::Tokenizer& tokenizer) {
  const Json all = chat_logprobs(steps, tokenizer);
  return all.is_null() ? Json::array() : all.at("content");
}

}  // namespace

HttpResponse WholeResponse::answer(const std::vector<CollectedAnswer>& choices) {
  const CollectedAnswer& answer = choices.front();
  const char* const last = ended_status(answer.outcome);
  const bool cut = is_incomplete(answer.outcome);
  Json output = Json::array();
  const bool spoke = !answer.content.empty() || !answer.calls.empty();
  if (!answer.reasoning.empty()) {
    output.push_back(reasoning_item(context_, random_id("rs_"), answer.reasoning, spoke ? "completed" : last));
  }
  if (!answer.content.empty() || (answer.calls.empty() && !cut)) {
    output.push_back(message_item(random_id("msg_"), answer.content, logprob_list(answer.logprobs, tokenizer_),
                                  answer.calls.empty() ? last : "completed"));
  }
  for (size_t i = 0; i < answer.calls.size(); ++i) {
    const ResponseCall call = new_response_call(context_, answer.calls[i].name);
    const std::string& arguments = answer.calls[i].arguments;
    output.push_back(call_item(call, call.tool.custom ? custom_tool_input(arguments) : arguments,
                               i + 1 == answer.calls.size() ? last : "completed"));
  }
  return {.body = dump(response_ended(context_, answer.outcome, std::move(output)))};
}

std::string ResponseStream::event(const char* type, Json members) {
  Json out = {{"type", type}, {"sequence_number", sequence_number_++}};
  out.update(members);
  return sse_event(type, out);
}

std::string ResponseStream::item_event(const char* type, Json members) {
  Json out = {{"item_id", id_}, {"output_index", output_.size()}};
  out.update(members);
  return event(type, std::move(out));
}

// One statement an event: they are numbered in the order in which they are made.
std::string ResponseStream::begin(int64_t) {
  const Json response = response_in_progress(context_);
  std::string out = event("response.created", {{"response", response}});
  out += event("response.in_progress", {{"response", response}});
  return out;
}

std::string ResponseStream::add(int, const engine::Update& update) {
  std::string out;
  if (update.logprobs && !update.logprobs->reasoning) untold_.push_back(*update.logprobs);
  for (const OutputEvent& one : update.events) {
    switch (one.kind) {
      case OutputEvent::Kind::kReasoning:
        out += add_reasoning(one.text);
        break;
      case OutputEvent::Kind::kContent:
        out += add_content(one.text);
        break;
      case OutputEvent::Kind::kToolCallBegin:
        out += open_call(one.text);
        break;
      case OutputEvent::Kind::kToolCallArguments:
        out += add_arguments(one.text);
        break;
      case OutputEvent::Kind::kToolCallEnd:
        // A call that ends with the answer may have been cut.
        out += close(update.outcome ? ended_status(*update.outcome) : "completed");
        break;
    }
  }
  if (update.outcome) outcome_ = *update.outcome;
  return out;
}

std::string ResponseStream::end() {
  std::string out = close(ended_status(outcome_));
  const bool cut = is_incomplete(outcome_);
  const bool answered = !output_.empty() && output_.back().at("type") != "reasoning";
  // An answer that says nothing is an empty message.
  if (!answered && !cut) {
    out += open_message();
    out += close("completed");
  }
  return out + event(cut ? "response.incomplete" : "response.completed",
                     {{"response", response_ended(context_, outcome_, std::move(output_))}});
}

std::string ResponseStream::fail(const ApiError& error) {
  std::string out = close("incomplete");
  out += event("error", {{"code", error.code.empty() ? Json(nullptr) : Json(error.code)},
                         {"message", error.message},
                         {"param", error.param.empty() ? Json(nullptr) : Json(error.param)}});
  return out + event("response.failed", {{"response", response_failed(context_, error, std::move(output_))}});
}

std::string ResponseStream::opened(Item kind, const Json& item) {
  open_ = kind;
  text_.clear();
  return event("response.output_item.added", {{"output_index", output_.size()}, {"item", item}});
}

std::string ResponseStream::closed(const Json& item) {
  open_ = Item::kNone;
  std::string out = event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(item);
  return out;
}

std::string ResponseStream::open_reasoning() {
  std::string out = close("completed");
  id_ = random_id("rs_");
  out += opened(Item::kReasoning, reasoning_item(context_, id_, "", "in_progress"));
  if (context_.summarised) {
    return out + item_event("response.reasoning_summary_part.added",
                            {{"summary_index", 0}, {"part", {{"type", "summary_text"}, {"text", ""}}}});
  }
  return out + item_event("response.content_part.added",
                          {{"content_index", 0}, {"part", {{"type", "reasoning_text"}, {"text", ""}}}});
}

std::string ResponseStream::add_reasoning(const std::string& text) {
  std::string out;
  if (open_ != Item::kReasoning) out = open_reasoning();
  text_ += text;
  if (context_.summarised) {
    return out + item_event("response.reasoning_summary_text.delta", {{"summary_index", 0}, {"delta", text}});
  }
  return out + item_event("response.reasoning_text.delta", {{"content_index", 0}, {"delta", text}});
}

std::string ResponseStream::close_reasoning(const char* status) {
  std::string out;
  if (context_.summarised) {
    out = item_event("response.reasoning_summary_text.done", {{"summary_index", 0}, {"text", text_}});
    out += item_event("response.reasoning_summary_part.done",
                      {{"summary_index", 0}, {"part", {{"type", "summary_text"}, {"text", text_}}}});
  } else {
    out = item_event("response.reasoning_text.done", {{"content_index", 0}, {"text", text_}});
    out += item_event("response.content_part.done",
                      {{"content_index", 0}, {"part", {{"type", "reasoning_text"}, {"text", text_}}}});
  }
  return out + closed(reasoning_item(context_, id_, text_, status));
}

std::string ResponseStream::open_message() {
  std::string out = close("completed");
  id_ = random_id("msg_");
  logprobs_ = Json::array();
  out += opened(
      Item::kMessage,
      {{"id", id_}, {"type", "message"}, {"status", "in_progress"}, {"role", "assistant"}, {"content", Json::array()}});
  return out + item_event("response.content_part.added",
                          {{"content_index", 0}, {"part", output_text_part("", Json::array())}});
}

std::string ResponseStream::add_content(const std::string& text) {
  std::string out;
  if (open_ != Item::kMessage) out = open_message();
  text_ += text;
  Json logprobs = logprob_list(std::exchange(untold_, {}), tokenizer_);
  logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
  return out + item_event("response.output_text.delta",
                          {{"content_index", 0}, {"delta", text}, {"logprobs", std::move(logprobs)}});
}

std::string ResponseStream::close_message(const char* status) {
  std::string out =
      item_event("response.output_text.done", {{"content_index", 0}, {"text", text_}, {"logprobs", logprobs_}});
  out += item_event("response.content_part.done", {{"content_index", 0}, {"part", output_text_part(text_, logprobs_)}});
  return out + closed(message_item(id_, text_, logprobs_, status));
}

// A name in the middle of the message's tokens takes their log probabilities with it: they belong to no message.
std::string ResponseStream::open_call(const std::string& shown) {
  std::string out = close("completed");
  untold_.clear();
  call_ = new_response_call(context_, shown);
  id_ = call_.id;
  return out + opened(Item::kCall, call_item(call_, "", "in_progress"));
}

// A custom tool's input is told once it is whole: its text stands within the arguments.
std::string ResponseStream::add_arguments(const std::string& text) {
  text_ += text;
  if (call_.tool.custom) return {};
  return item_event("response.function_call_arguments.delta", {{"delta", text}});
}

std::string ResponseStream::close_call(const char* status) {
  untold_.clear();
  std::string out;
  if (call_.tool.custom) {
    text_ = custom_tool_input(text_);
    if (!text_.empty()) out = item_event("response.custom_tool_call_input.delta", {{"delta", text_}});
    out += item_event("response.custom_tool_call_input.done", {{"input", text_}});
  } else {
    out = item_event("response.function_call_arguments.done", {{"name", call_.tool.name}, {"arguments", text_}});
  }
  return out + closed(call_item(call_, text_, status));
}

std::string ResponseStream::close(const char* status) {
  switch (open_) {
    case Item::kReasoning:
      return close_reasoning(status);
    case Item::kMessage:
      return close_message(status);
    case Item::kCall:
      return close_call(status);
    case Item::kNone:
      break;
  }
  return {};
}

}  // namespace tandem::serve
