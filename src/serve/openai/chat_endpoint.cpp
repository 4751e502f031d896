#include <utility>

#include "serve/answer.h"
#include "serve/endpoints.h"
#include "serve/fields.h"
#include "serve/media.h"
#include "serve/openai/chat_answer.h"
#include "serve/openai/chat_request.h"

namespace tandem::serve {

namespace {

void answer_chat(Service& service, const HttpRequest& http, Reply reply) {
  const std::shared_ptr<engine::Engine> engine = service.engine();
  ChatRequest chat = chat_request(parse_object(http.body));
  if (const auto refusal = service.check_model(chat.model)) {
    reply.send(openai_error(*refusal));
    return;
  }
  service.omit_media(chat.request.messages);
  AnswerJob job{.request = std::move(chat.request),
                .choices = chat.choices,
                .parallel_tool_calls = chat.tools.parallel,
                .stream = nullptr,
                .whole = nullptr};
  job.request.grammar = service.grammar(chat.tools, chat.format);
  AnswerIdentity identity{.id = random_id("chatcmpl-"), .model = service.model_id(), .created = unix_seconds()};
  if (chat.stream) {
    job.stream = std::make_unique<ChatStream>(
        std::move(identity), engine->tokenizer(),
        ChatStreamOptions{
            .choices = chat.choices, .include_usage = chat.include_usage, .return_progress = chat.return_progress});
  } else {
    job.whole = std::make_unique<ChatCompletion>(std::move(identity), engine->tokenizer());
  }
  start_answer(service, std::move(job), openai_error, std::move(reply));
}

}  // namespace

void add_chat_endpoint(Router& router, Service& service) {
  router.add({.method = "POST", .path = "/v1/chat/completions", .handler = [&service](HttpRequest http, Reply reply) {
                answer_chat(service, http, std::move(reply));
              }});
}

}  // namespace tandem::serve
