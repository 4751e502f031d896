#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "device/device.h"
#include "engine/generation.h"
#include "engine/limits.h"
#include "engine/sampling_defaults.h"

namespace tandem::engine {
namespace {

using GenerationPtr = std::shared_ptr<Generation>;

constexpr int64_t kUnnoticedBytes = int64_t{64} << 20;  // a driver's own comings and goings

int64_t pages_of(const Generation& generation) {
  return static_cast<int64_t>(base::round_up(static_cast<uint64_t>(generation.most_tokens()), model::kPageTokens));
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// A step's exception ends its own request and no other, but for a device's failure, after which nothing can be
// computed.
void guarded(Generation& generation, const std::function<void()>& body) {
  try {
    body();
  } catch (const device::Fault& fault) {
    generation.end_with_error(fault.kind(), fault.what());
    throw;
  } catch (const base::Error& error) {
    generation.end_with_error(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    generation.end_with_error(base::ErrorKind::kUnavailable, "out of memory");
  } catch (const std::exception& error) {
    generation.end_with_error(base::ErrorKind::kInternal, error.what());
  }
}

void check_parts(const EngineOptions& options, const EngineParts& parts) {
  if (options.max_context > parts.model->capacity_tokens()) {
    base::bad_input("max-context", "{} tokens do not fit into a KV capacity of {} tokens", options.max_context,
                    parts.model->capacity_tokens());
  }
  if (parts.tokenizer.size() > parts.model->vocab()) {
    base::bad_input(parts.model_name, "the tokenizer has {} tokens, the model only {} rows of logits",
                    parts.tokenizer.size(), parts.model->vocab());
  }
}

}  // namespace

PromptTooLong::PromptTooLong(int64_t prompt_tokens, int64_t max_context)
    : base::Error(base::ErrorKind::kBadInput, "",
                  fmt::format("prompt is too long: {} tokens > {} maximum", prompt_tokens, max_context - 1)),
      prompt_tokens_(prompt_tokens),
      max_context_(max_context) {}

struct Engine::Impl {
  using Clock = std::chrono::steady_clock;

  Impl(EngineParts the_parts, EngineOptions the_options);
  ~Impl();

  GenerationPlan plan(Request request, UpdateSink sink);
  Steering::Options steering(const Request& request, bool thinking) const;
  void check_biases(const std::vector<LogitBias>& biases) const;
  std::vector<int32_t> render(const Request& request) const;

  void loop();
  void fail(const std::string& why);
  bool admit();  // false: the engine is being destroyed
  void look_at_memory();
  void step_all();
  void note_step(Generation& generation, int64_t read, int64_t drawn);

  EngineOptions options;
  EngineParts parts;
  GenerationDefaults defaults;
  std::vector<int32_t> ends;
  std::shared_ptr<const grammar::Vocabulary> vocabulary;

  mutable std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::atomic<uint64_t> next_id = 1;
  std::deque<GenerationPtr> queue;
  std::unordered_map<uint64_t, GenerationPtr> live;  // queued or running
  EngineStatus totals;
  std::unordered_map<uint64_t, RunningRequest> progress;  // of the running requests
  Clock::time_point last_step = Clock::now();

  // Of the step thread alone.
  std::vector<GenerationPtr> running;
  int64_t reserved_tokens = 0;  // what the running requests may come to hold
  Clock::time_point next_look{};
  bool memory_was_short = false;

  std::thread thread;
};

Engine::Impl::Impl(EngineParts the_parts, EngineOptions the_options)
    : options(resolve_limits(std::move(the_options), the_parts.config)), parts(std::move(the_parts)) {
  check_parts(options, parts);
  const std::string source = parts.model_name + ": generation_config.json";
  defaults = GenerationDefaults::from_json(parts.generation_config, source);
  ends = end_tokens(defaults, parts.tokenizer, source);
  vocabulary = std::make_shared<const grammar::Vocabulary>(parts.tokenizer);
  totals.kv_capacity = parts.model->capacity_tokens();
  totals.max_context = options.max_context;
  totals.max_concurrency = options.max_concurrency;
  totals.max_queue = options.max_queue;
  thread = std::thread([this] { loop(); });
}

Engine::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  wake.notify_all();
  thread.join();
}

std::vector<int32_t> Engine::Impl::render(const Request& request) const {
  if (request.prompt_ids) {
    const int64_t size = parts.tokenizer.size();
    for (const int32_t id : *request.prompt_ids) {
      if (id < 0 || id >= size) base::bad_input("prompt", "token id {} is outside [0, {})", id, size);
    }
    return *request.prompt_ids;
  }
  if (!parts.chat_template) {
    base::bad_input(parts.model_name, "the model has no chat template, it can only continue a prompt");
  }
  if (request.messages.empty()) base::bad_input("messages", "the conversation is empty");
  return text::ChatTemplate::encode(
      parts.tokenizer, parts.chat_template->render(request.messages, request.tools, request.template_options));
}

GenerationPlan Engine::Impl::plan(Request request, UpdateSink sink) {
  GenerationPlan plan;
  if (request.max_tokens && *request.max_tokens < 0) {
    base::bad_input("max_tokens", "{} is negative", *request.max_tokens);
  }
  plan.prompt = render(request);
  if (plan.prompt.empty()) base::bad_input("prompt", "the prompt is empty");
  const int64_t left = options.max_context - static_cast<int64_t>(plan.prompt.size());
  if (left < 1) throw PromptTooLong(static_cast<int64_t>(plan.prompt.size()), options.max_context);
  plan.max_tokens = std::min(request.max_tokens.value_or(left), left);

  const bool thinking = ends_in_open_think(plan.prompt, parts.tokenizer);
  plan.sampling = resolve_sampling(request.sampling, defaults, thinking);
  if (!plan.sampling.seed) plan.sampling.seed = random_seed();
  plan.answer = {.tools = std::move(request.tools),
                 .starts_in_reasoning = thinking,
                 .raw = request.raw,
                 .stop = std::move(request.stop)};
  check_biases(plan.sampling.logit_bias);
  plan.steering = steering(request, thinking);
  if (request.top_logprobs && (*request.top_logprobs < 0 || *request.top_logprobs > kMostTopLogprobs)) {
    base::bad_input("top_logprobs", "{} is outside [0, {}]", *request.top_logprobs, kMostTopLogprobs);
  }
  plan.top_logprobs = request.top_logprobs;
  plan.progress = request.progress;
  plan.prefill_chunk = options.prefill_chunk;
  plan.sink = std::move(sink);
  plan.id = next_id++;
  return plan;
}

Steering::Options Engine::Impl::steering(const Request& request, bool thinking) const {
  if (request.max_reasoning_tokens && *request.max_reasoning_tokens < 0) {
    base::bad_input("max_reasoning_tokens", "{} is negative", *request.max_reasoning_tokens);
  }
  if (request.min_tokens < 0) base::bad_input("min_tokens", "{} is negative", request.min_tokens);
  Steering::Options out{.grammar = request.grammar,
                        .vocabulary = vocabulary,
                        .max_reasoning_tokens = request.max_reasoning_tokens,
                        .min_tokens = request.min_tokens,
                        .guards = options.guards,
                        .starts_in_reasoning = thinking && !request.raw};
  if (request.ignore_end_tokens) {
    out.guards.repeat = false;  // measurements run to max_tokens
  } else {
    out.end_tokens = ends;
  }
  return out;
}

void Engine::Impl::check_biases(const std::vector<LogitBias>& biases) const {
  for (const LogitBias& bias : biases) {
    if (bias.token >= 0 && bias.token < parts.tokenizer.size()) continue;
    base::bad_input("logit_bias", "token id {} is outside [0, {})", bias.token, parts.tokenizer.size());
  }
}

// A card is shared with whoever else uses it: what others take after the start is missing when a step is recorded.
void Engine::Impl::look_at_memory() {
  const auto now = Clock::now();
  if (now < next_look) return;
  next_look = now + options.memory_interval;
  const std::optional<DeviceMemory> memory = parts.model->device_memory();
  if (!memory) return;
  const int64_t missing = memory->planned_free_bytes - memory->free_bytes;
  const bool is_short = missing > kUnnoticedBytes;
  if (is_short && !memory_was_short) {
    spdlog::warn("the card has {} free, {} less than planned: other programs took it since the start",
                 base::format_bytes(static_cast<uint64_t>(memory->free_bytes)),
                 base::format_bytes(static_cast<uint64_t>(missing)));
  }
  memory_was_short = is_short;
  const std::lock_guard lock(mutex);
  totals.memory = memory;
}

// Waits for work, ends what was cancelled while it waited, and starts what fits.
bool Engine::Impl::admit() {
  std::vector<GenerationPtr> cancelled;
  look_at_memory();
  {
    std::unique_lock lock(mutex);
    const auto something = [this] { return stopping || !queue.empty() || !running.empty(); };
    if (!wake.wait_for(lock, options.memory_interval, something)) return true;
    if (stopping) return false;
    std::erase_if(queue, [&](const GenerationPtr& generation) {
      if (!generation->cancelled()) return false;
      live.erase(generation->id());
      cancelled.push_back(generation);
      return true;
    });
    while (!queue.empty() && running.size() < static_cast<size_t>(options.max_concurrency)) {
      const int64_t tokens = pages_of(*queue.front());
      // The first in the queue waits until it fits; nothing overtakes it.
      if (!running.empty() && reserved_tokens + tokens > parts.model->capacity_tokens()) break;
      reserved_tokens += tokens;
      running.push_back(std::move(queue.front()));
      queue.pop_front();
    }
    totals.running = static_cast<int>(running.size());
    totals.kv_reserved = reserved_tokens;
  }
  for (const auto& generation : cancelled) generation->end_cancelled();
  return true;
}

void Engine::Impl::step_all() {
  for (const auto& generation : running) {
    const int64_t read = generation->prompt_done();
    const int64_t drawn = generation->outcome().completion_tokens;
    guarded(*generation, [&] {
      if (generation->cancelled()) {
        generation->end_cancelled();
        return;
      }
      if (!generation->started()) generation->start(*parts.model);
      generation->step();
    });
    note_step(*generation, read, drawn);
  }
  std::erase_if(running, [](const GenerationPtr& generation) { return generation->ended(); });
  const std::lock_guard lock(mutex);
  totals.running = static_cast<int>(running.size());
}

// Keeps the books after a step that found `read` tokens of the prompt and `drawn` of the answer.
void Engine::Impl::note_step(Generation& generation, int64_t read, int64_t drawn) {
  const Outcome& outcome = generation.outcome();
  const std::lock_guard lock(mutex);
  last_step = Clock::now();
  totals.prompt_tokens += generation.prompt_done() - read;
  totals.completion_tokens += outcome.completion_tokens - drawn;
  if (!generation.ended()) {
    progress[generation.id()] = {.id = generation.id(),
                                 .prompt_tokens = outcome.prompt_tokens,
                                 .prompt_done = generation.prompt_done(),
                                 .cached_tokens = outcome.cached_tokens,
                                 .completion_tokens = outcome.completion_tokens,
                                 .seconds = generation.seconds_since_start(),
                                 .decode_seconds = generation.seconds_of_decode()};
    return;
  }
  progress.erase(generation.id());
  live.erase(generation.id());
  reserved_tokens -= pages_of(generation);
  totals.kv_reserved = reserved_tokens;
}

// Health is red from here on; then every request ends.
void Engine::Impl::fail(const std::string& why) {
  spdlog::critical("the engine ends: {}", why);
  std::vector<GenerationPtr> all = std::move(running);
  running.clear();
  {
    const std::lock_guard lock(mutex);
    totals.failure = why;
    totals.running = 0;
    stopping = true;
    for (GenerationPtr& generation : queue) all.push_back(std::move(generation));
    queue.clear();
    live.clear();
    progress.clear();
  }
  for (const auto& generation : all) {
    if (!generation->ended()) generation->end_with_error(base::ErrorKind::kInternal, why);
  }
  if (options.on_failure) options.on_failure();
}

void Engine::Impl::loop() {
  try {
    while (admit()) step_all();
  } catch (const device::Fault& fault) {
    fail(fault.what());
  }
  for (const auto& generation : running) generation->end_cancelled();
  running.clear();
  // Nothing can be queued any more: submit refuses once `stopping` is set.
  for (const auto& generation : queue) generation->end_cancelled();
}

Engine::Engine(EngineParts parts, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parts), options)) {}

Engine::~Engine() = default;

Engine::RequestId Engine::submit(Request request, UpdateSink sink) {
  auto generation =
      std::make_shared<Generation>(impl_->plan(std::move(request), std::move(sink)), impl_->parts.tokenizer);
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->totals.failure.empty()) base::internal_error("", "the engine has ended: {}", impl_->totals.failure);
    if (impl_->stopping) base::unavailable("", "the engine is shutting down");
    if (impl_->queue.size() >= static_cast<size_t>(impl_->options.max_queue)) {
      throw base::Error(base::ErrorKind::kOverloaded, "",
                        fmt::format("{} requests are waiting already, no more are taken", impl_->queue.size()));
    }
    if (impl_->live.empty()) impl_->last_step = Impl::Clock::now();
    impl_->queue.push_back(generation);
    impl_->live.emplace(generation->id(), generation);
  }
  impl_->wake.notify_all();
  return generation->id();
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(impl_->mutex);
  if (const auto found = impl_->live.find(id); found != impl_->live.end()) found->second->cancel();
}

EngineStatus Engine::status() const {
  const std::lock_guard lock(impl_->mutex);
  EngineStatus status = impl_->totals;
  status.waiting = static_cast<int>(impl_->queue.size());
  for (const auto& [id, request] : impl_->progress) status.requests.push_back(request);
  std::sort(status.requests.begin(), status.requests.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  if (!impl_->live.empty()) {
    status.seconds_without_step = std::chrono::duration<double>(Impl::Clock::now() - impl_->last_step).count();
  }
  return status;
}

const std::string& Engine::model_name() const {
  return impl_->parts.model_name;
}

const model::Config& Engine::config() const {
  return impl_->parts.config;
}

const text::Tokenizer& Engine::tokenizer() const {
  return impl_->parts.tokenizer;
}

const std::optional<text::ChatTemplate>& Engine::chat_template() const {
  return impl_->parts.chat_template;
}

std::shared_ptr<const grammar::Vocabulary> Engine::vocabulary() const {
  return impl_->vocabulary;
}

std::vector<int32_t> Engine::render(const Request& request) const {
  return impl_->render(request);
}

}  // namespace tandem::engine
