#include "serve/metrics.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

#include "base/version.h"

namespace tandem::serve {

namespace {

constexpr double kSeconds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640};
constexpr double kGaps[] = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5};
constexpr double kTokens[] = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144};

// A label's value: backslashes, quotes and line breaks are escaped.
std::string label_value(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

void describe(std::string& out, const std::string& name, const char* type, const char* help) {
  fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <typename Value>
void sample(std::string& out, const std::string& name, const std::string& labels, Value value) {
  fmt::format_to(std::back_inserter(out), "{}{{{}}} {}\n", name, labels, value);
}

template <typename Value>
void single(std::string& out, const std::string& name, const char* type, const char* help, const std::string& labels,
            Value value) {
  describe(out, name, type, help);
  sample(out, name, labels, value);
}

}  // namespace

void Histogram::observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
  sum_ += value;
}

void Histogram::print(std::string& out, const std::string& name, const std::string& labels) const {
  uint64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    sample(out, name + "_bucket", fmt::format("{},le=\"{}\"", labels, bound), total);
  }
  sample(out, name + "_sum", labels, sum_);
  sample(out, name + "_count", labels, total);
}

Metrics::Metrics()
    : queue_(kSeconds),
      prefill_(kSeconds),
      decode_(kSeconds),
      first_token_(kSeconds),
      between_tokens_(kGaps),
      whole_(kSeconds),
      prompt_sizes_(kTokens),
      answer_sizes_(kTokens) {}

void Metrics::answered(const engine::Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  ++by_reason_.at(static_cast<size_t>(outcome.reason));
  guards_.ends_redrawn += outcome.guards.ends_redrawn;
  guards_.reasoning_closed += outcome.guards.reasoning_closed;
  guards_.repeats_ended += outcome.guards.repeats_ended;
  prompt_tokens_ += outcome.prompt_tokens;
  cached_tokens_ += outcome.cached_tokens;
  completion_tokens_ += outcome.completion_tokens;
  const engine::Timings& timings = outcome.timings;
  queue_.observe(timings.queued_seconds);
  whole_.observe(timings.queued_seconds + timings.prefill_seconds + timings.decode_seconds);
  if (outcome.completion_tokens == 0) return;
  prefill_.observe(timings.prefill_seconds);
  decode_.observe(timings.decode_seconds);
  first_token_.observe(timings.queued_seconds + timings.prefill_seconds);
  prompt_sizes_.observe(static_cast<double>(outcome.prompt_tokens));
  answer_sizes_.observe(static_cast<double>(outcome.completion_tokens));
  if (outcome.completion_tokens > 1) {
    between_tokens_.observe(timings.decode_seconds / static_cast<double>(outcome.completion_tokens - 1));
  }
}

void Metrics::omitted_media(int64_t pictures) {
  const std::lock_guard lock(mutex_);
  omitted_media_ += pictures;
}

std::string Metrics::prometheus(const std::string& model, const engine::EngineStatus* engine) const {
  const std::string labels = fmt::format("model_name=\"{}\"", label_value(model));
  std::string out;
  single(out, "tandem:build_info", "gauge", "The program that answers",
         fmt::format("version=\"{}\"", label_value(base::build_description())), 1);
  single(out, "tandem:model_ready", "gauge", "1 once the model is loaded", labels, engine != nullptr ? 1 : 0);
  if (engine != nullptr) {
    single(out, "vllm:num_requests_running", "gauge", "Requests that are being answered", labels, engine->running);
    single(out, "vllm:num_requests_waiting", "gauge", "Requests that wait for their turn", labels, engine->waiting);
    const double usage = engine->kv_capacity == 0
                             ? 0
                             : static_cast<double>(engine->kv_reserved) / static_cast<double>(engine->kv_capacity);
    single(out, "vllm:kv_cache_usage_perc", "gauge", "Part of the KV capacity that running requests may fill; 1 is all",
           labels, usage);
    single(out, "tandem:seconds_without_step", "gauge", "Since a step ended while there is work", labels,
           engine->seconds_without_step);
    if (engine->memory) {
      single(out, "tandem:vram_free_bytes", "gauge", "Memory of the card that nobody has taken", labels,
             engine->memory->free_bytes);
      single(out, "tandem:vram_planned_free_bytes", "gauge",
             "What would be free if nobody else had taken memory since the start", labels,
             engine->memory->planned_free_bytes);
    }
    // Of all requests, also those in progress.
    single(out, "vllm:prompt_tokens_total", "counter", "Tokens of prompts", labels, engine->prompt_tokens);
    single(out, "vllm:generation_tokens_total", "counter", "Tokens of answers", labels, engine->completion_tokens);
  }
  const std::lock_guard lock(mutex_);
  describe(out, "vllm:request_success_total", "counter", "Requests that have ended, by how");
  for (size_t i = 0; i < by_reason_.size(); ++i) {
    sample(out, "vllm:request_success_total",
           fmt::format("{},finished_reason=\"{}\"", labels,
                       engine::finish_reason_name(static_cast<engine::FinishReason>(i))),
           by_reason_.at(i));
  }
  single(out, "vllm:prefix_cache_queries_total", "counter", "Tokens of prompts looked for in the context cache", labels,
         prompt_tokens_);
  single(out, "vllm:prefix_cache_hits_total", "counter", "Tokens of prompts found there", labels, cached_tokens_);
  describe(out, "tandem:guards_total", "counter", "How often a guard stepped in");
  const auto guard = [&](const char* name, int64_t count) {
    sample(out, "tandem:guards_total", fmt::format("{},guard=\"{}\"", labels, name), count);
  };
  guard("empty-answer", guards_.ends_redrawn);
  guard("open-thinking", guards_.reasoning_closed);
  guard("repeat", guards_.repeats_ended);
  single(out, "tandem:omitted_images_total", "counter", "Pictures that the model could not see", labels,
         omitted_media_);
  const auto histogram = [&](const char* name, const char* help, const Histogram& values) {
    describe(out, name, "histogram", help);
    values.print(out, name, labels);
  };
  histogram("vllm:request_queue_time_seconds", "From the request to its first step", queue_);
  histogram("vllm:request_prefill_time_seconds", "From there to the end of the prompt", prefill_);
  histogram("vllm:request_decode_time_seconds", "From there to the last token", decode_);
  histogram("vllm:time_to_first_token_seconds", "From the request to the end of its prompt", first_token_);
  histogram("vllm:time_per_output_token_seconds", "Between tokens, the mean of each answer", between_tokens_);
  histogram("vllm:e2e_request_latency_seconds", "From the request to its last token", whole_);
  histogram("vllm:request_prompt_tokens", "Tokens of a prompt", prompt_sizes_);
  histogram("vllm:request_generation_tokens", "Tokens of an answer", answer_sizes_);
  return out;
}

}  // namespace tandem::serve
