#include "scripted_server.h"

#include <chrono>
#include <utility>

#include "artifact/artifact.h"
#include "base/error.h"
#include "serve/endpoints.h"

namespace tandem::app {

engine::EngineParts scripted_parts(const std::filesystem::path& folder, const std::string& answer,
                                   const engine::EngineOptions& limits) {
  const auto artifact = artifact::Artifact::open(folder);
  const std::string name = folder.string();
  if (artifact.tokenizer_json().empty()) base::bad_input(name, "has no tokenizer");
  if (artifact.chat_template().empty()) base::bad_input(name, "has no chat template");
  auto tokenizer = text::Tokenizer::from_json(artifact.tokenizer_json(), name + ": tokenizer.json");
  engine::ScriptedOptions script;
  script.vocab = tokenizer.size();
  script.end_token = tokenizer.added_token("<|im_end|>").value_or(0);
  script.script = [tokens = tokenizer.encode(answer, text::AddedTokens::kParse)](auto) { return tokens; };
  script.capacity_tokens = limits.max_context * limits.max_concurrency;
  script.slots = limits.max_concurrency;
  model::Config config;
  config.model_type = "scripted";
  config.vocab = script.vocab;
  config.max_position_embeddings = limits.max_context;
  return {.model_name = "scripted",
          .config = config,
          .tokenizer = std::move(tokenizer),
          .chat_template = text::ChatTemplate::from_jinja(artifact.chat_template(), name + ": chat template"),
          .generation_config = artifact.generation_config(),
          .model = std::make_unique<engine::ScriptedModel>(std::move(script))};
}

ScriptedServer::ScriptedServer(engine::EngineParts parts, const engine::EngineOptions& limits)
    : engine_(std::make_shared<engine::Engine>(std::move(parts), limits)), service_({}) {
  service_.set_engine(engine_);
  serve::add_endpoints(router_, service_);
  serve::ServerOptions options;
  options.port = 0;
  server_ = std::make_unique<serve::HttpServer>(options, router_);
  thread_ = std::thread([this] { server_->run(); });
}

ScriptedServer::~ScriptedServer() {
  server_->stop();
  server_->stop();  // at once
  thread_.join();
}

bool ScriptedServer::is_idle_soon() const {
  using namespace std::chrono_literals;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (std::chrono::steady_clock::now() < until) {
    const auto status = engine_->status();
    if (status.running == 0 && status.waiting == 0) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

}  // namespace tandem::app
