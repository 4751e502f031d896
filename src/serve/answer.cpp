#include "serve/answer.h"

#include <chrono>
#include <fmt/format.h>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

namespace tandem::serve {

using text::OutputEvent;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kProgressInterval{500};

bool failed(const engine::Outcome& outcome) {
  return outcome.reason == engine::FinishReason::kCancelled || outcome.reason == engine::FinishReason::kError;
}

// The error that an answer ended with; a cancelled one is the server's doing, as nobody is told when a client has left.
ApiError outcome_error(const engine::Outcome& outcome) {
  if (outcome.reason == engine::FinishReason::kCancelled) {
    return http_error(503, "the request was ended because the server is shutting down", "cancelled");
  }
  return api_error(base::Error(outcome.error_kind, "", outcome.error));
}

ApiError prompt_too_long(const engine::PromptTooLong& error, const char* field, const std::string& request_id) {
  ApiError out = http_error(400, error.what(), "context_length_exceeded");
  out.param = field;
  out.request_id = request_id;
  out.details = {{"n_prompt_tokens", error.prompt_tokens()}, {"n_ctx", error.max_context()}};
  return out;
}

// An answer in progress: the engine's updates on one side, the client on the other.
class AnswerRun {
 public:
  AnswerRun(const Service& service, AnswerJob job, ErrorFormat errors, Reply reply)
      : metrics_(service.metrics()),
        stream_(std::move(job.stream)),
        whole_(std::move(job.whole)),
        parallel_tool_calls_(job.parallel_tool_calls),
        errors_(errors),
        request_id_(std::move(job.request_id)),
        reply_(std::move(reply)),
        collected_(static_cast<size_t>(job.choices)),
        unfinished_(job.choices) {}

  // The engine has taken all choices. Updates may have come before.
  void accepted(int64_t prompt_tokens) {
    const std::lock_guard lock(mutex_);
    accepted_ = true;
    if (stream_) {
      HttpResponse head{.content_type = stream_->content_type()};
      head.headers.add("cache-control", "no-cache");
      reply_.open_stream(std::move(head));
      write(stream_->begin(prompt_tokens));
    }
    for (const auto& [choice, update] : std::exchange(early_, {})) pass_on(choice, update);
  }

  void update(int choice, engine::Update update) {
    const std::lock_guard lock(mutex_);
    if (update.outcome) metrics_->answered(*update.outcome);
    if (!parallel_tool_calls_) {
      std::erase_if(update.events, [](const OutputEvent& event) { return event.tool_call > 0; });
    }
    if (accepted_) {
      pass_on(choice, update);
    } else {
      early_.emplace_back(choice, std::move(update));
    }
  }

 private:
  void pass_on(int choice, const engine::Update& update) {
    if (done_) return;
    if (update.outcome && failed(*update.outcome)) {
      fail(outcome_error(*update.outcome));
      return;
    }
    if (stream_) {
      if (update.progress) report(*update.progress);
      write(stream_->add(choice, update));
    } else {
      collected_[static_cast<size_t>(choice)].add(update);
    }
    if (!update.outcome) return;
    note(*update.outcome);
    if (--unfinished_ == 0) end();
  }

  void report(const engine::Progress& progress) {
    const auto now = Clock::now();
    if (progress.done < progress.total && now - reported_ < kProgressInterval) return;
    reported_ = now;
    write(stream_->progress(progress));
  }

  void write(const std::string& text) {
    if (!text.empty()) reply_.write(text);
  }

  void end() {
    done_ = true;
    if (stream_) {
      write(stream_->end());
      reply_.finish();
    } else {
      reply_.send(whole_->answer(collected_));
    }
  }

  void fail(ApiError error) {
    done_ = true;
    error.request_id = request_id_;
    if (stream_) {
      write(stream_->fail(error));
      reply_.finish();
    } else {
      reply_.send(errors_(error));
    }
  }

  // For the request log.
  void note(const engine::Outcome& outcome) {
    prompt_tokens_ = outcome.prompt_tokens;
    completion_tokens_ += outcome.completion_tokens;
    reply_.note({{"prompt_tokens", prompt_tokens_},
                 {"cached_tokens", outcome.cached_tokens},
                 {"completion_tokens", completion_tokens_},
                 {"finish_reason", engine::finish_reason_name(outcome.reason)}});
  }

  const std::shared_ptr<Metrics> metrics_;
  std::mutex mutex_;
  std::unique_ptr<StreamFormat> stream_;
  std::unique_ptr<WholeFormat> whole_;
  const bool parallel_tool_calls_;
  const ErrorFormat errors_;
  const std::string request_id_;
  Reply reply_;
  bool accepted_ = false;
  bool done_ = false;
  std::vector<std::pair<int, engine::Update>> early_;
  std::vector<CollectedAnswer> collected_;
  int unfinished_;
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  Clock::time_point reported_{};
};

// What has been submitted, so that it can be taken back.
class Submitted {
 public:
  explicit Submitted(const std::shared_ptr<engine::Engine>& engine) : engine_(engine) {}

  void add(engine::Engine::RequestId id) { ids_.push_back(id); }
  void cancel() const {
    // Not an owner: a client that stays connected must not keep the engine alive.
    const auto running = engine_.lock();
    if (!running) return;
    for (const engine::Engine::RequestId id : ids_) running->cancel(id);
  }

 private:
  std::weak_ptr<engine::Engine> engine_;
  std::vector<engine::Engine::RequestId> ids_;
};

}  // namespace

void CollectedAnswer::add(const engine::Update& update) {
  for (const OutputEvent& event : update.events) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        content += event.text;
        break;
      case OutputEvent::Kind::kToolCallBegin:
        calls.push_back({.name = event.text, .arguments = {}});
        break;
      case OutputEvent::Kind::kToolCallArguments:
        calls.back().arguments += event.text;
        break;
      case OutputEvent::Kind::kToolCallEnd:
        break;
    }
  }
  if (update.logprobs) logprobs.push_back(*update.logprobs);
  if (update.outcome) outcome = *update.outcome;
}

std::string StreamFormat::progress(const engine::Progress& progress) {
  return fmt::format(": {} of {} prompt tokens read\n\n", progress.done, progress.total);
}

void start_answer(const Service& service, AnswerJob job, ErrorFormat errors, Reply reply) {
  const std::shared_ptr<engine::Engine> engine = service.engine();
  engine::Request request = std::move(job.request);
  std::vector<std::vector<int32_t>> prompts = std::move(job.prompts);
  if (prompts.empty()) prompts.push_back(engine->render(request));
  request.messages.clear();
  request.progress = job.stream != nullptr;
  int64_t prompt_tokens = 0;
  for (const auto& prompt : prompts) prompt_tokens += static_cast<int64_t>(prompt.size());
  const int choices = job.choices;
  const std::string request_id = job.request_id;
  const size_t choices_a_prompt = static_cast<size_t>(choices) / prompts.size();
  const char* const prompt_field = job.prompt_field;
  const auto run = std::make_shared<AnswerRun>(service, std::move(job), errors, reply);
  Submitted submitted(engine);
  try {
    for (int choice = 0; choice < choices; ++choice) {
      engine::Request one = request;
      one.prompt_ids = prompts[static_cast<size_t>(choice) / choices_a_prompt];
      if (one.sampling.seed) *one.sampling.seed += static_cast<uint64_t>(choice);
      submitted.add(
          engine->submit(std::move(one), [run, choice](const engine::Update& update) { run->update(choice, update); }));
    }
  } catch (const engine::PromptTooLong& error) {
    submitted.cancel();
    reply.send(errors(prompt_too_long(error, prompt_field, request_id)));
    return;
  } catch (...) {
    submitted.cancel();
    throw;
  }
  run->accepted(prompt_tokens);
  reply.on_gone([submitted] { submitted.cancel(); });
}

std::string sse_event(const std::string& data) {
  return "data: " + data + "\n\n";
}

std::string sse_event(const std::string& name, const base::Json& data) {
  return "event: " + name + "\ndata: " + dump(data) + "\n\n";
}

std::string random_id(const std::string& prefix) {
  static thread_local std::mt19937_64 random{[] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }()};
  return fmt::format("{}{:016x}{:08x}", prefix, random(), random() >> 32);
}

int64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace tandem::serve
