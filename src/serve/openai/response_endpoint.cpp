#include <memory>
#include <utility>

#include "serve/answer.h"
#include "serve/endpoints.h"
#include "serve/fields.h"
#include "serve/openai/response_answer.h"
#include "serve/openai/response_request.h"

namespace tandem::serve {

namespace {

void answer_response(Service& service, const HttpRequest& http, Reply reply) {
  const std::shared_ptr<engine::Engine> engine = service.engine();
  ResponseRequest asked = response_request(parse_object(http.body));
  if (const auto refusal = service.check_model(asked.model)) {
    reply.send(openai_error(*refusal));
    return;
  }
  service.omit_media(asked.request.messages);
  AnswerJob job{.request = std::move(asked.request),
                .prompt_field = "input",
                .parallel_tool_calls = asked.tools.request.parallel,
                .stream = nullptr,
                .whole = nullptr};
  job.request.grammar = service.grammar(asked.tools.request, asked.format);
  ResponseContext context{
      .identity = {.id = random_id("resp_"), .model = service.model_id(), .created = unix_seconds()},
      .echo = std::move(asked.echo),
      .tools = std::move(asked.tools.names),
      .summarised = asked.summarised,
      .carries_reasoning = asked.carries_reasoning};
  if (asked.stream) {
    job.stream = std::make_unique<ResponseStream>(std::move(context), engine->tokenizer());
  } else {
    job.whole = std::make_unique<WholeResponse>(std::move(context), engine->tokenizer());
  }
  start_answer(service, std::move(job), openai_error, std::move(reply));
}

// Codex asks for a WebSocket first; this status tells it to POST instead.
void refuse_web_socket(const HttpRequest& http, Reply reply) {
  const bool upgrade = http.headers.find("upgrade").has_value();
  reply.send(
      openai_error(upgrade ? http_error(426, "no WebSocket is spoken here: POST the request", "upgrade_not_supported")
                           : http_error(404, "nothing is stored here: there are no earlier responses", "not_found")));
}

void nothing_stored(const HttpRequest& http, Reply reply) {
  constexpr size_t kShownId = 100;
  reply.send(openai_error(http_error(
      404, fmt::format("there is no response {}: nothing is stored here", http.parameter.substr(0, kShownId)),
      "not_found")));
}

}  // namespace

void add_responses_endpoints(Router& router, Service& service) {
  router.add({.method = "POST", .path = "/v1/responses", .handler = [&service](HttpRequest http, Reply reply) {
                answer_response(service, http, std::move(reply));
              }});
  router.add({.method = "GET", .path = "/v1/responses", .handler = refuse_web_socket, .quick = true});
  for (const char* method : {"GET", "DELETE", "POST"}) {
    router.add({.method = method, .path = "/v1/responses/{id}", .handler = nothing_stored, .quick = true});
  }
}

}  // namespace tandem::serve
