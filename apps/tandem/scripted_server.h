// A whole server in this process, on loopback, over a model that plays a script, with the tokenizer and the template of
// an artifact: what stands around a model is measured with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "engine/scripted_model.h"
#include "serve/http/http_server.h"
#include "serve/http/router.h"
#include "serve/service.h"

namespace tandem::app {

// The texts of an artifact with the scripted model. `answer` is what follows every prompt; max_tokens or its end ends
// it. Throws base::Error where the artifact has no tokenizer or no template.
engine::EngineParts scripted_parts(const std::filesystem::path& artifact, const std::string& answer,
                                   const engine::EngineOptions& limits);

class ScriptedServer {
 public:
  ScriptedServer(engine::EngineParts parts, const engine::EngineOptions& limits);
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  uint16_t port() const { return server_->port(); }
  engine::Engine& engine() { return *engine_; }
  serve::Service& service() { return service_; }
  // Every request has left the engine within 20 seconds.
  bool is_idle_soon() const;

 private:
  std::shared_ptr<engine::Engine> engine_;
  serve::Service service_;
  serve::Router router_;
  std::unique_ptr<serve::HttpServer> server_;
  std::thread thread_;
};

}  // namespace tandem::app
