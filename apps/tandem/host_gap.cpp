#include "host_gap.h"

#include <future>

#include "base/error.h"
#include "device/cuda/watched_device.h"
#include "grammar/grammar.h"
#include "synth/tokenizer.h"
#include "synthetic_model.h"

namespace tandem::app {
namespace {

using device::cuda::WatchedDevice;

constexpr int64_t kPromptTokens = 512;
constexpr int64_t kContext = 1024;  // as far as one recording reaches
constexpr size_t kFirstSteps = 8;   // of an answer: they are run directly, or recorded

struct Kind {
  const char* name;
  engine::SamplingRequest sampling;
  std::shared_ptr<const grammar::Grammar> grammar;
};

void answer(engine::Engine& engine, const Kind& kind, int64_t steps) {
  engine::Request request;
  request.prompt_ids = random_tokens(kPromptTokens, engine.tokenizer().size());
  request.raw = true;
  request.sampling = kind.sampling;
  request.grammar = kind.grammar;
  request.max_tokens = steps;
  request.ignore_end_tokens = true;
  std::promise<engine::Outcome> ended;
  engine.submit(std::move(request), [&](const engine::Update& update) {
    if (update.outcome) ended.set_value(*update.outcome);
  });
  const engine::Outcome outcome = ended.get_future().get();
  if (outcome.reason == engine::FinishReason::kError) base::internal_error("bench gpu", "{}", outcome.error);
}

std::vector<double> noted(engine::Engine& engine, const model::Model& model, WatchedDevice::Watch watch,
                          const Kind& kind, int64_t steps) {
  auto& device = dynamic_cast<WatchedDevice&>(model.device());
  device.watch(watch);
  answer(engine, kind, steps);
  std::vector<double> us = device.noted_us(model.recordings_of_step());
  device.watch(WatchedDevice::Watch::kNothing);
  if (us.size() > 2 * kFirstSteps) us.erase(us.begin(), us.begin() + kFirstSteps);
  if (us.empty()) base::internal_error("bench gpu", "no step was recorded");
  return us;
}

base::Json json(const experts::NgramCounters& rows) {
  return {{"hits", rows.hits},   {"late", rows.late},   {"misses", rows.misses},  {"prefetched", rows.prefetched},
          {"reads", rows.reads}, {"waits", rows.waits}, {"wait_ns", rows.wait_ns}};
}

engine::EngineParts parts_of(const std::string& name, engine::LoadedModel loaded) {
  const model::Config config = loaded.model->config();
  return {.model_name = name,
          .config = config,
          .tokenizer = text::Tokenizer::from_json(synth::tokenizer_json(config.vocab), name),
          .chat_template = std::nullopt,
          .generation_config = base::Json(),
          .model = engine::text_model(std::move(loaded), kContext, 1)};
}

}  // namespace

void measure_host_gap(BenchReport& report, const std::string& name, engine::LoadedModel loaded, int steps) {
  const model::Model& model = *loaded.model;  // the engine's from here on
  engine::EngineOptions options;
  options.max_context = kContext;
  options.max_concurrency = 1;
  options.prefill_chunk = kPromptTokens;
  engine::Engine engine(parts_of(name, std::move(loaded)), options);
  engine::SamplingRequest greedy;
  greedy.temperature = 0;
  engine::SamplingRequest sampled;  // as the published models ask for
  sampled.temperature = 0.7;
  sampled.top_p = 0.8;
  sampled.top_k = 20;
  engine::SamplingRequest biased = sampled;  // what raises a logit takes all of them
  biased.logit_bias = {{0, 1.0F}};
  const auto text = grammar::compile_ebnf("root ::= [^\\x00]*");
  const Kind kinds[] = {
      {"greedy", greedy, nullptr},       {"masked", greedy, text},      {"sampled", sampled, nullptr},
      {"sampled_masked", sampled, text}, {"from_all", biased, nullptr},
  };
  for (const Kind& kind : kinds) {
    const auto periods = noted(engine, model, WatchedDevice::Watch::kEnds, kind, steps);
    const base::Json rows = json(model.ngram_counters());
    const auto durations = noted(engine, model, WatchedDevice::Watch::kDurations, kind, steps);
    const std::string key = fmt::format("host.{}.{}", name, kind.name);
    report.raw[key] = {{"from_end_to_end_us", periods}, {"recording_us", durations}, {"ngram_rows_so_far", rows}};
    report.figures[key + ".gap_us"] = median(periods) - median(durations);
  }
}

}  // namespace tandem::app
