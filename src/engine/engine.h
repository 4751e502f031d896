// The engine: requests in, updates out. One step thread runs the model; submit and cancel may be called from anywhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/request.h"
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
  int64_t max_context = 0;      // tokens of prompt and answer of one request; 0: the config's, at most 32,768
  int64_t prefill_chunk = 512;  // tokens, a multiple of 64
  int max_queue = 64;           // requests that may wait
};

struct EngineStatus {
  int running = 0;
  int waiting = 0;
  int64_t max_context = 0;
  int64_t prompt_tokens = 0;  // totals since start
  int64_t completion_tokens = 0;
};

class Engine {
 public:
  // Loads the model and starts the step thread; throws base::Error.
  explicit Engine(const EngineOptions& options);
  ~Engine();  // cancels what runs and waits for the step thread

  using RequestId = uint64_t;
  // Checks and tokenises the request in the caller's thread and queues it. Throws base::Error: kBadInput for a request
  // that cannot be served (its message tells the field and the figures), kUnavailable where the queue is full.
  RequestId submit(Request request, UpdateSink sink);
  // Ends the request within one step; its sink gets an outcome of kCancelled. Unknown ids are ignored.
  void cancel(RequestId id);

  EngineStatus status() const;
  const std::string& model_name() const;
  const model::Config& config() const;
  const text::Tokenizer& tokenizer() const;
  // Tokens of the prompt that this request would have.
  std::vector<int32_t> render(const Request& request) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::engine
