#include "generate.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace tandem::app {
namespace {

// Hands updates from the engine's thread to the command's. Shared with the sink, so that it outlives both.
class UpdateQueue {
 public:
  void push(const engine::Update& update) {
    const std::lock_guard lock(mutex_);
    updates_.push_back(update);
    changed_.notify_one();
  }

  // The next update; nothing after a moment without one, so that the caller can look for an interrupt.
  std::optional<engine::Update> pop() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::milliseconds(50), [this] { return !updates_.empty(); })) return {};
    engine::Update update = std::move(updates_.front());
    updates_.pop_front();
    return update;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<engine::Update> updates_;
};

void collect(GeneratedAnswer& answer, std::vector<std::string>& arguments, const text::OutputEvent& event) {
  using Kind = text::OutputEvent::Kind;
  switch (event.kind) {
    case Kind::kContent:
      answer.text += event.text;
      break;
    case Kind::kReasoning:
      answer.reasoning += event.text;
      break;
    case Kind::kToolCallBegin:
      answer.tool_calls.push_back({.id = "", .name = event.text, .arguments = base::Json::object()});
      arguments.emplace_back();
      break;
    case Kind::kToolCallArguments:
      arguments.back() += event.text;
      break;
    case Kind::kToolCallEnd:
      answer.tool_calls.back().arguments = base::parse_json(arguments.back(), "tool call");
      break;
  }
}

double rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

}  // namespace

GeneratedAnswer generate(engine::Engine& engine, engine::Request request,
                         const std::function<void(const text::OutputEvent&)>& on_event,
                         const std::atomic<bool>* interrupted) {
  const auto queue = std::make_shared<UpdateQueue>();
  const auto id = engine.submit(std::move(request), [queue](const engine::Update& update) { queue->push(update); });
  GeneratedAnswer answer;
  std::vector<std::string> arguments;
  try {
    while (true) {
      const auto update = queue->pop();
      if (interrupted != nullptr && *interrupted) engine.cancel(id);
      if (!update) continue;
      for (const auto& event : update->events) {
        collect(answer, arguments, event);
        on_event(event);
      }
      if (!update->outcome) continue;
      answer.outcome = *update->outcome;
      break;
    }
  } catch (...) {
    engine.cancel(id);
    throw;
  }
  if (answer.outcome.reason == engine::FinishReason::kError) {
    throw base::Error(answer.outcome.error_kind, "", answer.outcome.error);
  }
  return answer;
}

text::Message text_message(text::Role role, std::string text) {
  text::Message message;
  message.role = role;
  message.content.push_back({.text = std::move(text)});
  return message;
}

base::Json answer_json(const GeneratedAnswer& answer) {
  const engine::Outcome& outcome = answer.outcome;
  base::Json calls = base::Json::array();
  for (const auto& call : answer.tool_calls) calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  return {{"text", answer.text},
          {"reasoning", answer.reasoning},
          {"tool_calls", std::move(calls)},
          {"token_ids", outcome.token_ids},
          {"prompt_tokens", outcome.prompt_tokens},
          {"finish_reason", engine::finish_reason_name(outcome.reason)},
          {"timings",
           {{"queued_seconds", outcome.timings.queued_seconds},
            {"prefill_seconds", outcome.timings.prefill_seconds},
            {"decode_seconds", outcome.timings.decode_seconds},
            {"prefill_tokens", outcome.prompt_tokens - outcome.cached_tokens},
            {"completion_tokens", outcome.completion_tokens},
            {"reasoning_tokens", outcome.reasoning_tokens}}}};
}

std::string speed_line(const engine::Outcome& outcome) {
  const auto& timings = outcome.timings;
  const int64_t read = outcome.prompt_tokens - outcome.cached_tokens;
  // The first token comes out of the prefill's last step.
  const int64_t steps = std::max<int64_t>(outcome.completion_tokens - 1, 0);
  return fmt::format("{} prompt tokens in {:.2f} s ({:.1f}/s), {} tokens in {:.2f} s ({:.1f}/s)", read,
                     timings.prefill_seconds, rate(read, timings.prefill_seconds), outcome.completion_tokens,
                     timings.decode_seconds, rate(steps, timings.decode_seconds));
}

}  // namespace tandem::app
