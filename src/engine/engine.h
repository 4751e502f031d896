// The engine: requests in, updates out. One step thread runs the model; submit and cancel may be called from anywhere.
//
// Requests start in the order they came. Up to max_concurrency of them take turns, one step each: a chunk of the
// prompt or one token of the answer; so answers go on while a long prompt is read.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/text_model.h"
#include "grammar/vocabulary.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::engine {

struct EngineOptions {
  std::filesystem::path artifact;
  std::string device = "cpu";
  int ranks = 1;
  int threads = 0;  // 0: what the machine allows
  model::LoadOptions load;
  uint64_t vram_limit = 0;      // bytes of a card that may be in use, by others too; 0: all that is free
  int64_t max_context = 0;      // tokens of prompt and answer of one request; 0: the config's, at most 32,768
  int64_t kv_capacity = 0;      // tokens that all running requests together may hold; 0: max_concurrency full contexts
  int64_t prefill_chunk = 512;  // tokens, a multiple of 64; chunks end at its multiples
  int max_concurrency = 2;      // requests that take turns
  int max_queue = 64;           // requests that may wait
  std::chrono::milliseconds memory_interval{10'000};  // between looks at the card's memory
  Guards guards;
  // Called once, on the step thread, when the device has failed and the engine with it: all requests have ended and
  // status() tells the failure. The process should end with exit code 3.
  std::function<void()> on_failure;
};

// The parts of an engine, for tests and for models that do not come from an artifact.
struct EngineParts {
  std::string model_name;
  model::Config config;
  text::Tokenizer tokenizer;
  std::optional<text::ChatTemplate> chat_template;  // absent: only prompt_ids can be served
  base::Json generation_config;                     // null where there is none
  std::unique_ptr<TextModel> model;
};

// A request that has its turn.
struct RunningRequest {
  uint64_t id = 0;
  int64_t prompt_tokens = 0;
  int64_t prompt_done = 0;  // of them, read
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  double seconds = 0;         // since its first step
  double decode_seconds = 0;  // since the end of its prompt
};

struct EngineStatus {
  int running = 0;
  int waiting = 0;
  int max_concurrency = 0;
  int max_queue = 0;
  int64_t max_context = 0;
  // Totals since start: read from prompts, drawn for answers.
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t kv_capacity = 0;  // tokens
  int64_t kv_reserved = 0;  // tokens that the running requests may come to hold
  // Since a step ended or work came to an idle engine; 0 where there is no work.
  double seconds_without_step = 0;
  // Of the card, looked at every few seconds; absent on the processor.
  std::optional<DeviceMemory> memory{};
  std::string failure{};  // of the device, which ended the engine; empty while it works
  std::vector<RunningRequest> requests{};
};

// A prompt that leaves no room for an answer: "prompt is too long: 9000 tokens > 8191 maximum". Clients look for these
// words; the maximum leaves room for one token of the answer.
class PromptTooLong : public base::Error {
 public:
  PromptTooLong(int64_t prompt_tokens, int64_t max_context);
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t max_context() const { return max_context_; }

 private:
  int64_t prompt_tokens_;
  int64_t max_context_;
};

class Engine {
 public:
  // Loads the model and starts the step thread; throws base::Error.
  explicit Engine(const EngineOptions& options);
  // Of the options only the limits count: contexts, chunk, concurrency and queue.
  Engine(EngineParts parts, const EngineOptions& options);
  ~Engine();  // every request that has not ended gets an outcome of kCancelled

  using RequestId = uint64_t;
  // Checks and tokenises the request in the caller's thread and queues it. Throws base::Error: kBadInput for a request
  // that cannot be served (its source names the field, its message the figures), kOverloaded where the queue is full.
  // The sink may be called before submit returns.
  RequestId submit(Request request, UpdateSink sink);
  // Ends the request within one step, also while it waits; its sink gets an outcome of kCancelled. Unknown ids are
  // ignored.
  void cancel(RequestId id);

  EngineStatus status() const;
  const std::string& model_name() const;
  const model::Config& config() const;
  const text::Tokenizer& tokenizer() const;
  const std::optional<text::ChatTemplate>& chat_template() const;
  std::shared_ptr<const grammar::Vocabulary> vocabulary() const;
  // Tokens of the prompt that this request would have.
  std::vector<int32_t> render(const Request& request) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::engine
