#include "options.h"

#include <functional>
#include <initializer_list>
#include <utility>

#include "base/units.h"

namespace tandem::app {
namespace {

constexpr const char* kMachine = "Where and how to compute";
constexpr const char* kContext = "Context";
constexpr const char* kSampling = "Sampling (what is not given comes from the model, docs/sampling.md)";

// An option whose value is one of a few words.
template <typename T>
CLI::Option* add_choice(CLI::App& command, const std::string& name, T& value, const std::string& help,
                        std::initializer_list<std::pair<const char*, T>> words) {
  std::vector<std::pair<std::string, T>> table(words.begin(), words.end());
  std::string list;
  std::string current;
  for (const auto& [word, meaning] : table) {
    list += (list.empty() ? "" : "|") + word;
    if (meaning == value && current.empty()) current = word;
  }
  const auto assign = [&value, name, list, table](const std::string& given) {
    for (const auto& [word, meaning] : table) {
      if (given != word) continue;
      value = meaning;
      return;
    }
    throw CLI::ValidationError(name, "'" + given + "' is none of " + list);
  };
  return command.add_option_function<std::string>(name, assign, help)->type_name(list)->default_str(current);
}

}  // namespace

CLI::Option* add_size(CLI::App& command, const std::string& name, uint64_t& bytes, const std::string& help) {
  const auto assign = [&bytes, name](const std::string& given) {
    const auto parsed = base::parse_bytes(given);
    if (!parsed) throw CLI::ValidationError(name, "'" + given + "' is no size such as 500MiB or 4GiB");
    bytes = *parsed;
  };
  return command.add_option_function<std::string>(name, assign, help)
      ->type_name("SIZE")
      ->default_str(base::format_bytes(bytes).erase(base::format_bytes(bytes).find(' '), 1));
}

CLI::Option* setting(CLI::Option* option) {
  std::string variable = "TANDEM_";
  for (const char c : option->get_single_name()) {
    variable += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return option->envname(variable);
}

CLI::Option* per_call(CLI::Option* option) {
  return option->configurable(false);
}

void add_model_options(CLI::App& command, engine::EngineOptions& options) {
  per_call(command.add_option("model", options.artifact, "The model: a folder NAME.tandem, made by `tandem convert`"))
      ->required()
      ->type_name("MODEL");
  add_machine_options(command, options);
}

void add_isa_option(CLI::App& command, std::optional<base::CpuLevel>& isa) {
  using Isa = std::optional<base::CpuLevel>;
  setting(add_choice<Isa>(command, "--isa", isa,
                          "Kernels of the processor, which all give the same bits; auto takes the best that it has",
                          {{"auto", std::nullopt},
                           {"avx2", base::CpuLevel::kAvx2},
                           {"avx512", base::CpuLevel::kAvx512},
                           {"avx512vbmi", base::CpuLevel::kAvx512Vbmi}}))
      ->group(kMachine);
}

void add_machine_options(CLI::App& command, engine::EngineOptions& options) {
  setting(command.add_option("--device", options.device, "cpu, sim[,sim] or cuda:N[,N]: one device a rank"))
      ->group(kMachine)
      ->capture_default_str();
  setting(command.add_option("--ranks", options.ranks, "Parts that the model is computed in, one a device"))
      ->group(kMachine)
      ->capture_default_str();
  setting(command.add_option("--threads", options.threads, "Threads that compute; 0 takes the cores that are free"))
      ->group(kMachine)
      ->capture_default_str();
  add_isa_option(command, options.load.isa);
  setting(add_choice(command, "--expert-mode", options.load.expert_mode,
                     "Activations of quantised experts: in 16 bits, or in 4 with NVFP4 and in 8 with other weights",
                     {{"w4a16", model::ExpertMode::kW4A16}, {"w4a4", model::ExpertMode::kW4A4}}))
      ->group(kMachine);
  setting(
      add_choice(command, "--expert-arithmetic", options.load.expert_arithmetic,
                 "Quantised experts of a card for more than 8 tokens at once: canonical gives the processor's bits; "
                 "bf16 reads prompts several times as fast, and answers may differ from the processor's",
                 {{"canonical", model::ExpertArithmetic::kCanonical}, {"bf16", model::ExpertArithmetic::kBF16}}))
      ->group(kMachine);
  setting(add_choice(command, "--activations", options.load.activations, "Inputs of matrix products",
                     {{"f32", model::Activations::kF32}, {"bf16", model::Activations::kBF16}}))
      ->group(kMachine);
  setting(add_choice(command, "--kv-cache", options.load.kv_cache,
                     "Cached keys and values: as the activations, or in 8 bits with a scale to 64 dimensions",
                     {{"activations", model::KvCache::kActivations}, {"int8", model::KvCache::kInt8}}))
      ->group(kMachine);
  setting(add_size(command, "--vram-limit", options.vram_limit,
                   "Memory of the card that may be in use, as 16GiB; 0 takes all that is free"))
      ->group(kMachine);
  setting(add_size(command, "--ngram-cache", options.load.ngram.cache_bytes,
                   "Memory for rows of the n-gram table, which is read from disk, as 256MiB"))
      ->group(kMachine);
}

void add_context_options(CLI::App& command, engine::EngineOptions& options) {
  setting(command.add_option("--max-context", options.max_context,
                             "Tokens of prompt and answer together; 0 takes the model's, at most 32,768"))
      ->group(kContext)
      ->capture_default_str();
  setting(command.add_option("--prefill-chunk", options.prefill_chunk,
                             "Tokens of the prompt that are read in one step, a multiple of 64"))
      ->group(kContext)
      ->capture_default_str();
}

void add_concurrency_options(CLI::App& command, engine::EngineOptions& options) {
  setting(command.add_option("--max-concurrency", options.max_concurrency, "Requests that are answered in turns"))
      ->group(kContext)
      ->capture_default_str();
  setting(command.add_option("--max-queue", options.max_queue, "Requests that may wait"))
      ->group(kContext)
      ->capture_default_str();
  setting(command.add_option("--kv-capacity", options.kv_capacity,
                             "Tokens that all running requests may hold together; 0 takes a full context for each"))
      ->group(kContext)
      ->capture_default_str();
}

void add_sampling_options(CLI::App& command, engine::SamplingRequest& sampling) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    setting(command.add_option(name, value, help))->group(kSampling);
  };
  add("--temperature", sampling.temperature, "0 is greedy, 1 as the model says, at most 100");
  add("--top-p", sampling.top_p, "Draw from the fewest tokens that reach this probability, in (0, 1]");
  add("--top-k", sampling.top_k, "Draw from this many tokens; 0 is off");
  add("--min-p", sampling.min_p, "Drop tokens below this fraction of the best one's probability, in [0, 1]");
  add("--presence-penalty", sampling.presence_penalty, "Taken off the logits of tokens already used, in [-2, 2]");
  add("--frequency-penalty", sampling.frequency_penalty, "The same for every use, in [-2, 2]");
  add("--seed", sampling.seed, "The same seed draws the same answer; without one each answer differs");
}

void add_thinking_options(CLI::App& command, text::TemplateOptions& options) {
  // By function: CLI11 does not apply a flag's negation to values from the environment.
  setting(command.add_flag_function(
      "--no-thinking", [&options](int64_t given) { options.thinking = given <= 0; },
      "Answer at once, without thinking first"));
  setting(add_choice(command, "--effort", options.effort, "How much to think",
                     {{"low", text::ReasoningEffort::kLow},
                      {"medium", text::ReasoningEffort::kMedium},
                      {"high", text::ReasoningEffort::kHigh},
                      {"xhigh", text::ReasoningEffort::kHigh}}));
}

}  // namespace tandem::app
