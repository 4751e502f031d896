#include <memory>
#include <mutex>
#include <utility>

#include "serve/chat_answer.h"
#include "serve/chat_request.h"
#include "serve/endpoints.h"
#include "serve/fields.h"

namespace tandem::serve {

namespace {

// An answer in progress: the engine's updates on one side, the client on the other.
class ChatAnswer {
 public:
  virtual ~ChatAnswer() = default;
  // The request is accepted; updates may have come before.
  virtual void accepted() = 0;
  virtual void update(const engine::Update& update) = 0;
};

class WholeAnswer : public ChatAnswer {
 public:
  WholeAnswer(Reply reply, ChatCompletion completion) : reply_(std::move(reply)), completion_(std::move(completion)) {}

  void accepted() override {}
  void update(const engine::Update& update) override {
    completion_.add(update.events);
    if (update.outcome) reply_.send(completion_.finish(*update.outcome));
  }

 private:
  Reply reply_;
  ChatCompletion completion_;
};

class StreamedAnswer : public ChatAnswer {
 public:
  StreamedAnswer(Reply reply, ChatStream stream) : reply_(std::move(reply)), stream_(std::move(stream)) {}

  void accepted() override {
    const std::lock_guard lock(mutex_);
    open();
  }
  void update(const engine::Update& update) override {
    const std::lock_guard lock(mutex_);
    open();
    std::string out = stream_.add(update.events);
    if (update.outcome) out += stream_.finish(*update.outcome);
    if (!out.empty()) reply_.write(out);
    if (update.outcome) reply_.finish();
  }

 private:
  // The handler's thread and the engine's both may be first.
  void open() {
    if (std::exchange(opened_, true)) return;
    HttpResponse head{.content_type = kEventStream};
    head.headers.add("cache-control", "no-cache");
    reply_.open_stream(std::move(head));
    reply_.write(stream_.begin());
  }

  std::mutex mutex_;
  Reply reply_;
  ChatStream stream_;
  bool opened_ = false;
};

std::shared_ptr<ChatAnswer> new_answer(const ChatRequest& chat, const std::string& model, Reply reply) {
  const ChatIdentity identity = new_chat_identity(model);
  const ChatToolPolicy policy{.parallel = chat.parallel_tool_calls};
  if (chat.stream) {
    return std::make_shared<StreamedAnswer>(std::move(reply), ChatStream(identity, policy, chat.include_usage));
  }
  return std::make_shared<WholeAnswer>(std::move(reply), ChatCompletion(identity, policy));
}

ApiError prompt_too_long(const engine::PromptTooLong& error) {
  ApiError out = http_error(400, error.what(), "context_length_exceeded");
  out.param = "messages";
  return out;
}

void answer_chat(const Service& service, const HttpRequest& http, Reply reply) {
  const std::shared_ptr<engine::Engine> engine = service.engine();
  ChatRequest chat = chat_request(parse_object(http.body));
  if (const auto refusal = service.check_model(chat.model)) {
    reply.send(openai_error(*refusal));
    return;
  }
  const auto answer = new_answer(chat, service.model_id(), reply);
  engine::Engine::RequestId id;
  try {
    id = engine->submit(std::move(chat.request), [answer](const engine::Update& update) { answer->update(update); });
  } catch (const engine::PromptTooLong& error) {
    reply.send(openai_error(prompt_too_long(error)));
    return;
  }
  answer->accepted();
  // Not an owner: a client that stays connected must not keep the engine alive.
  reply.on_gone([weak = std::weak_ptr(engine), id] {
    if (const auto running = weak.lock()) running->cancel(id);
  });
}

}  // namespace

void add_chat_endpoint(Router& router, Service& service) {
  router.add({.method = "POST", .path = "/v1/chat/completions", .handler = [&service](HttpRequest http, Reply reply) {
                answer_chat(service, http, std::move(reply));
              }});
}

}  // namespace tandem::serve
