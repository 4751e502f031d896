#include "scripted_engine.h"

#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/json.h"

namespace tandem::testing {
namespace {

const std::filesystem::path kDemo = std::filesystem::path(TANDEM_SOURCE_DIR) / "models/demo-flash";

std::string demo_text(const char* name) {
  return base::read_text(kDemo / name, uint64_t{1} << 24);
}

}  // namespace

text::Tokenizer demo_tokenizer() {
  return text::Tokenizer::from_json(demo_text("tokenizer.json"), "tokenizer.json");
}

Script answer_in_turn(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  std::vector<std::vector<int32_t>> answers;
  for (const auto& text : texts) answers.push_back(tokenizer.encode(text, text::AddedTokens::kParse));
  return [answers = std::move(answers), next = std::make_shared<size_t>(0)](std::span<const int32_t>) {
    return answers.at((*next)++ % answers.size());
  };
}

Script answer_by(std::function<std::string(const std::string& prompt)> reply) {
  auto tokenizer = std::make_shared<text::Tokenizer>(demo_tokenizer());
  return [tokenizer, reply = std::move(reply)](std::span<const int32_t> prompt) {
    return tokenizer->encode(reply(tokenizer->decode(prompt, false)), text::AddedTokens::kParse);
  };
}

engine::EngineParts scripted_parts(ScriptedOptions options) {
  text::Tokenizer tokenizer = demo_tokenizer();
  if (options.vocab == 0) options.vocab = tokenizer.size() + 19;  // padded, as checkpoints are
  if (options.end_token == 0) options.end_token = tokenizer.added_token("<|im_end|>").value();
  model::Config config;
  config.model_type = "scripted";
  config.vocab = options.vocab;
  config.max_position_embeddings = 32768;
  auto model = std::make_unique<ScriptedModel>(std::move(options));
  return {.model_name = "scripted",
          .config = config,
          .tokenizer = std::move(tokenizer),
          .chat_template = text::ChatTemplate::from_jinja(demo_text("chat_template.jinja"), "chat_template.jinja"),
          .generation_config = base::parse_json(demo_text("generation_config.json"), "generation_config.json"),
          .model = std::move(model)};
}

engine::EngineOptions scripted_limits() {
  engine::EngineOptions limits;
  limits.max_context = 4096;
  limits.prefill_chunk = 64;
  return limits;
}

std::unique_ptr<engine::Engine> scripted_engine(ScriptedOptions options, const engine::EngineOptions& limits) {
  return std::make_unique<engine::Engine>(scripted_parts(std::move(options)), limits);
}

std::unique_ptr<engine::Engine> scripted_engine(const std::vector<std::string>& texts) {
  ScriptedOptions options;
  options.script = answer_in_turn(demo_tokenizer(), texts);
  return scripted_engine(std::move(options));
}

}  // namespace tandem::testing
