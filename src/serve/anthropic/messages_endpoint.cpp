#include <optional>
#include <utility>

#include "serve/answer.h"
#include "serve/anthropic/error_form.h"
#include "serve/anthropic/messages_answer.h"
#include "serve/anthropic/messages_request.h"
#include "serve/endpoints.h"
#include "serve/fields.h"

namespace tandem::serve {

namespace {

// The prompt's tokens, so that both endpoints count the same.
std::vector<int32_t> message_prompt(Service& service, MessagesRequest& messages) {
  service.omit_media(messages.request.messages);
  return service.engine()->render(messages.request);
}

// Conversations that the server holds, of which a request brings only what is new. These details tell Anthropic's SDK,
// whose tool runner asks for one, to go on with whole conversations.
std::optional<ApiError> refuse_thread(const base::Json& body) {
  if (base::json_member(body, "thread").is_null()) return {};
  ApiError error = http_error(400, "thread: this server holds no conversations; send all messages");
  error.details = {{"error_code", "thread_unsupported_request"}, {"unsupported", {"thread"}}};
  return error;
}

void answer_message(Service& service, const HttpRequest& http, Reply reply) {
  const base::Json body = parse_object(http.body);
  std::optional<ApiError> refusal = refuse_thread(body);
  MessagesRequest messages;
  if (!refusal) {
    messages = messages_request(body);
    refusal = service.check_model(messages.model);
  }
  if (refusal) {
    refusal->request_id = http.id;
    reply.send(anthropic_error(*refusal));
    return;
  }
  AnswerJob job;
  std::vector<int32_t> prompt = message_prompt(service, messages);
  job.request = std::move(messages.request);
  job.request.prompt_ids = std::move(prompt);
  job.request.messages.clear();
  job.request.tools = messages.tools.shown();  // what makes a call a call, and types its arguments
  job.parallel_tool_calls = messages.tools.parallel;
  job.request_id = http.id;
  job.request.grammar = service.grammar(messages.tools, messages.format);
  MessageIdentity identity{.id = random_id("msg_"),
                           .model = messages.model.empty() ? service.model_id() : messages.model,
                           .max_tokens = job.request.max_tokens};
  if (messages.stream) {
    job.stream = std::make_unique<MessageStream>(std::move(identity));
  } else {
    job.whole = std::make_unique<MessageAnswer>(std::move(identity));
  }
  start_answer(service, std::move(job), anthropic_error, std::move(reply));
}

void count_tokens(Service& service, const HttpRequest& http, Reply reply) {
  MessagesRequest messages = messages_request(parse_object(http.body));
  if (auto refusal = service.check_model(messages.model)) {
    refusal->request_id = http.id;
    reply.send(anthropic_error(*refusal));
    return;
  }
  reply.send({.body = dump(base::Json{{"input_tokens", message_prompt(service, messages).size()}})});
}

}  // namespace

void add_messages_endpoints(Router& router, Service& service) {
  router.add({.method = "POST",
              .path = "/v1/messages",
              .handler = [&service](HttpRequest http, Reply reply) { answer_message(service, http, std::move(reply)); },
              .errors = anthropic_error});
  router.add({.method = "POST",
              .path = "/v1/messages/count_tokens",
              .handler = [&service](HttpRequest http, Reply reply) { count_tokens(service, http, std::move(reply)); },
              .errors = anthropic_error});
}

}  // namespace tandem::serve
