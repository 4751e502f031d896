#include "engine/limits.h"

#include <algorithm>

namespace tandem::engine {
namespace {

constexpr int64_t kDefaultContext = 32768;
// Beyond this, positions leave what FP32 angles of the rotary embedding resolve.
constexpr int64_t kMostContext = int64_t{1} << 24;
constexpr int64_t kMostCapacity = int64_t{1} << 30;
constexpr int kMostConcurrency = 64;

}  // namespace

EngineOptions resolve_limits(EngineOptions options, const model::Config& config) {
  if (options.max_context == 0) options.max_context = std::min(config.max_position_embeddings, kDefaultContext);
  if (options.max_context < 2 || options.max_context > kMostContext) {
    base::bad_input("max-context", "{} is outside [2, {}]", options.max_context, kMostContext);
  }
  if (options.max_concurrency < 1 || options.max_concurrency > kMostConcurrency) {
    base::bad_input("max-concurrency", "{} is outside [1, {}]", options.max_concurrency, kMostConcurrency);
  }
  if (options.kv_capacity == 0) options.kv_capacity = options.max_context * options.max_concurrency;
  if (options.kv_capacity < options.max_context || options.kv_capacity > kMostCapacity) {
    base::bad_input("kv-capacity", "{} tokens are outside [{}, {}], from one whole context", options.kv_capacity,
                    options.max_context, kMostCapacity);
  }
  if (options.prefill_chunk <= 0 || options.prefill_chunk % model::kPageTokens != 0) {
    base::bad_input("prefill-chunk", "{} is not a positive multiple of {}", options.prefill_chunk, model::kPageTokens);
  }
  if (options.max_queue < 1) base::bad_input("max-queue", "{} is below 1", options.max_queue);
  return options;
}

}  // namespace tandem::engine
