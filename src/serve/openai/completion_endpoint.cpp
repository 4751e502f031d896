#include <memory>
#include <utility>

#include "serve/answer.h"
#include "serve/endpoints.h"
#include "serve/fields.h"
#include "serve/openai/completion_answer.h"
#include "serve/openai/completion_request.h"

namespace tandem::serve {

namespace {

void answer_completion(Service& service, const HttpRequest& http, Reply reply) {
  const std::shared_ptr<engine::Engine> engine = service.engine();
  CompletionRequest asked = completion_request(parse_object(http.body), engine->tokenizer());
  if (const auto refusal = service.check_model(asked.model)) {
    reply.send(openai_error(*refusal));
    return;
  }
  CompletionContext context{
      .identity = {.id = random_id("cmpl-"), .model = service.model_id(), .created = unix_seconds()},
      .echoes = {},
      .choices_a_prompt = asked.choices_a_prompt,
      .include_usage = asked.include_usage};
  AnswerJob job{.request = std::move(asked.request),
                .prompt_field = "prompt",
                .choices = asked.choices(),
                .stream = nullptr,
                .whole = nullptr};
  job.request.grammar = service.grammar(ToolRequest{}, asked.format);
  for (CompletionPrompt& prompt : asked.prompts) {
    context.echoes.push_back(asked.echo ? std::move(prompt.text) : std::string());
    job.prompts.push_back(std::move(prompt.tokens));
  }
  if (asked.stream) {
    job.stream = std::make_unique<CompletionStream>(std::move(context), engine->tokenizer());
  } else {
    job.whole = std::make_unique<WholeCompletion>(std::move(context), engine->tokenizer());
  }
  start_answer(service, std::move(job), openai_error, std::move(reply));
}

}  // namespace

void add_completions_endpoint(Router& router, Service& service) {
  router.add({.method = "POST", .path = "/v1/completions", .handler = [&service](HttpRequest http, Reply reply) {
                answer_completion(service, http, std::move(reply));
              }});
}

}  // namespace tandem::serve
