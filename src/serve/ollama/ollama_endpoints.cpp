#include <utility>

#include "base/version.h"
#include "serve/endpoints.h"
#include "serve/fields.h"
#include "serve/ollama/chat.h"

namespace tandem::serve {

using base::Json;

namespace {

// Clients hide models that are older than what they need.
constexpr const char* kOllamaVersion = "0.12.0";

void answer_ollama(Service& service, const HttpRequest& http, Reply reply) {
  const std::shared_ptr<engine::Engine> engine = service.engine();
  OllamaChat chat = ollama_chat(parse_object(http.body));
  if (const auto refusal = service.check_model(chat.model)) {
    reply.send(ollama_error(*refusal));
    return;
  }
  service.omit_media(chat.request.messages);
  AnswerJob job{.request = std::move(chat.request),
                .parallel_tool_calls = chat.tools.parallel,
                .stream = nullptr,
                .whole = nullptr};
  job.request.grammar = service.grammar(chat.tools, chat.format);
  if (chat.stream) {
    job.stream = std::make_unique<OllamaStream>(service.model_id());
  } else {
    job.whole = std::make_unique<OllamaAnswer>(service.model_id());
  }
  start_answer(service, std::move(job), ollama_error, std::move(reply));
}

Json model_entry(const Service& service) {
  const std::string id = service.model_id();
  return {{"name", id},
          {"model", id},
          {"modified_at", "1970-01-01T00:00:00Z"},
          {"size", 0},
          {"digest", ""},
          {"details", {{"format", "tandem"}, {"family", "qwen3"}, {"parameter_size", ""}, {"quantization_level", ""}}}};
}

Json show(const Service& service) {
  const auto engine = service.engine();
  return {{"modelfile", ""},
          {"parameters", ""},
          {"template", ""},
          {"details", model_entry(service).at("details")},
          {"model_info", {{"general.architecture", "qwen3"}, {"qwen3.context_length", engine->status().max_context}}},
          {"capabilities", Json::array({"completion", "tools", "thinking"})}};
}

}  // namespace

void add_ollama_endpoints(Router& router, Service& service) {
  const auto get = [&](const char* path, auto make) {
    router.add({.method = "GET",
                .path = path,
                .handler = [&service, make](HttpRequest, Reply reply) { reply.send({.body = dump(make(service))}); },
                .quick = true,
                .errors = ollama_error});
  };
  get("/api/version", [](const Service&) { return Json{{"version", kOllamaVersion}}; });
  get("/api/tags", [](const Service& s) { return Json{{"models", Json::array({model_entry(s)})}}; });
  get("/api/ps", [](const Service& s) { return Json{{"models", Json::array({model_entry(s)})}}; });
  router.add({.method = "POST",
              .path = "/api/show",
              .handler = [&service](HttpRequest, Reply reply) { reply.send({.body = dump(show(service))}); },
              .errors = ollama_error});
  router.add({.method = "POST",
              .path = "/api/chat",
              .handler = [&service](HttpRequest http, Reply reply) { answer_ollama(service, http, std::move(reply)); },
              .errors = ollama_error});
}

}  // namespace tandem::serve
