#include <memory>
#include <utility>

#include "serve/endpoints.h"
#include "serve/fields.h"
#include "serve/openai/chat_request.h"
#include "serve/openai/token_ids.h"
#include "text/utf8.h"

namespace tandem::serve {

using base::Json;

namespace {

// A chat request's conversation as the model would be given it.
engine::Request conversation(Service& service, const Json& body) {
  ChatRequest chat = chat_request(body);
  service.omit_media(chat.request.messages);
  return std::move(chat.request);
}

// The text, or its bytes where it is no whole character.
Json piece_json(std::string_view bytes) {
  if (text::utf8_valid_prefix(bytes, 0) == bytes.size()) return std::string(bytes);
  Json numbers = Json::array();
  for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
  return numbers;
}

Json with_pieces(const std::vector<int32_t>& tokens, const text::Tokenizer& tokenizer) {
  Json out = Json::array();
  for (const int32_t id : tokens) out.push_back({{"id", id}, {"piece", piece_json(tokenizer.token_bytes(id))}});
  return out;
}

std::vector<int32_t> tokens_of(Service& service, const engine::Engine& engine, const Json& body) {
  if (!base::json_member(body, "messages").is_null()) return engine.render(conversation(service, body));
  const auto content = string_field(body, "content");
  const auto prompt = string_field(body, "prompt");
  if (content && prompt) base::bad_input("prompt", "and content are both there");
  if (!content && !prompt) base::bad_input("content", "is missing: content, prompt or messages is expected");
  return engine.tokenizer().encode(content ? *content : *prompt, read_added_tokens(body));
}

void answer_tokenize(Service& service, const HttpRequest& http, Reply reply) {
  const std::shared_ptr<engine::Engine> engine = service.engine();
  const Json body = parse_object(http.body);
  const bool pieces = bool_field(body, "with_pieces").value_or(false);
  const std::vector<int32_t> tokens = tokens_of(service, *engine, body);
  reply.send({.body = dump(Json{{"tokens", pieces ? with_pieces(tokens, engine->tokenizer()) : Json(tokens)},
                                {"count", tokens.size()},
                                {"max_model_len", engine->status().max_context}})});
}

void answer_detokenize(const Service& service, const HttpRequest& http, Reply reply) {
  const std::shared_ptr<engine::Engine> engine = service.engine();
  const Json body = parse_object(http.body);
  const text::Tokenizer& tokenizer = engine->tokenizer();
  const std::vector<int32_t> tokens = read_token_ids(base::json_member(body, "tokens"), "tokens", tokenizer);
  const std::string text = text::utf8_repaired(tokenizer.decode(tokens, false));
  reply.send({.body = dump(Json{{"content", text}, {"prompt", text}})});
}

void answer_apply_template(Service& service, const HttpRequest& http, Reply reply) {
  const std::shared_ptr<engine::Engine> engine = service.engine();
  const engine::Request request = conversation(service, parse_object(http.body));
  const auto& chat_template = engine->chat_template();
  if (!chat_template) base::bad_input("messages", "the model has no chat template");
  const std::string prompt =
      text::ChatTemplate::join(chat_template->render(request.messages, request.tools, request.template_options));
  reply.send({.body = dump(Json{{"prompt", prompt}})});
}

}  // namespace

void add_token_endpoints(Router& router, Service& service) {
  router.add({.method = "POST", .path = "/tokenize", .handler = [&service](HttpRequest http, Reply reply) {
                answer_tokenize(service, http, std::move(reply));
              }});
  router.add({.method = "POST", .path = "/detokenize", .handler = [&service](HttpRequest http, Reply reply) {
                answer_detokenize(service, http, std::move(reply));
              }});
  router.add({.method = "POST", .path = "/apply-template", .handler = [&service](HttpRequest http, Reply reply) {
                answer_apply_template(service, http, std::move(reply));
              }});
}

}  // namespace tandem::serve
