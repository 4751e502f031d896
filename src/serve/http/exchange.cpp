#include "serve/http/exchange.h"

#include <utility>

#include "serve/http/errors.h"

namespace tandem::serve {

Exchange::News Exchange::take() {
  std::lock_guard lock(mutex_);
  News out = std::move(news_);
  news_ = News{};
  news_.finished = out.finished;
  news_.failed = out.failed;
  woken_ = false;
  return out;
}

void Exchange::wake() {
  if (woken_ || !wake_) return;
  woken_ = true;
  wake_();
}

void Exchange::call_gone(std::unique_lock<std::mutex>& lock) {
  ended_ = true;
  std::function<void()> callback = std::exchange(gone_callback_, nullptr);
  lock.unlock();
  if (callback) callback();
}

void Exchange::client_gone() {
  std::unique_lock lock(mutex_);
  gone_ = true;
  if (state_ == State::kFinished) return;
  news_.bytes.clear();
  call_gone(lock);
}

void Exchange::ask_to_end() {
  std::unique_lock lock(mutex_);
  if (state_ == State::kFinished) return;
  call_gone(lock);
}

void Exchange::detach() {
  std::function<void()> dropped;  // destroyed after the lock is given up
  std::lock_guard lock(mutex_);
  wake_ = nullptr;
  gone_ = true;
  // Whatever the callback holds must not outlive the request.
  dropped = std::exchange(gone_callback_, nullptr);
}

bool Exchange::send(HttpResponse response) {
  std::function<void()> dropped;  // destroyed after the lock is given up
  std::lock_guard lock(mutex_);
  if (state_ != State::kWaiting) return false;
  state_ = State::kFinished;
  dropped = std::exchange(gone_callback_, nullptr);
  news_.head = std::move(response);
  news_.finished = true;
  wake();
  return true;
}

bool Exchange::open_stream(HttpResponse head) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kWaiting) return false;
  state_ = State::kStreaming;
  news_.head = std::move(head);
  news_.stream = true;
  wake();
  return !gone_;
}

bool Exchange::write(std::string_view bytes) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming || gone_) return false;
  if (news_.bytes.size() + bytes.size() > max_unsent_bytes_) {
    gone_ = true;
    news_.failed = true;
    news_.bytes = std::string();
    wake();  // the connection's thread ends the request: this one may be the engine's
    return false;
  }
  news_.bytes += bytes;
  wake();
  return true;
}

void Exchange::finish() {
  std::function<void()> dropped;  // destroyed after the lock is given up
  std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming) return;
  state_ = State::kFinished;
  dropped = std::exchange(gone_callback_, nullptr);
  news_.finished = true;
  wake();
}

void Exchange::abandon() {
  std::function<void()> dropped;  // destroyed after the lock is given up
  std::lock_guard lock(mutex_);
  if (state_ == State::kFinished) return;
  if (state_ == State::kWaiting) {
    news_.head = openai_error(http_error(500, "the request was dropped without an answer", "internal_error"));
  } else {
    news_.failed = true;
  }
  state_ = State::kFinished;
  news_.finished = true;
  dropped = std::exchange(gone_callback_, nullptr);
  wake();
}

void Exchange::on_gone(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kFinished) return;
    if (!ended_) {
      gone_callback_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool Exchange::gone() const {
  std::lock_guard lock(mutex_);
  return gone_;
}

void Exchange::note(const base::Json& members) {
  const std::lock_guard lock(mutex_);
  notes_.update(members);
}

base::Json Exchange::notes() const {
  const std::lock_guard lock(mutex_);
  return notes_;
}

struct Reply::Holder {
  explicit Holder(std::shared_ptr<Exchange> e) : exchange(std::move(e)) {}
  ~Holder() { exchange->abandon(); }
  std::shared_ptr<Exchange> exchange;
};

Reply::Reply(std::shared_ptr<Exchange> exchange) : holder_(std::make_shared<Holder>(std::move(exchange))) {}

bool Reply::send(HttpResponse response) {
  return holder_->exchange->send(std::move(response));
}
bool Reply::open_stream(HttpResponse head) {
  return holder_->exchange->open_stream(std::move(head));
}
bool Reply::write(std::string_view bytes) {
  return holder_->exchange->write(bytes);
}
void Reply::finish() {
  holder_->exchange->finish();
}
void Reply::on_gone(std::function<void()> callback) {
  holder_->exchange->on_gone(std::move(callback));
}
void Reply::note(const base::Json& members) {
  holder_->exchange->note(members);
}
bool Reply::gone() const {
  return holder_->exchange->gone();
}

}  // namespace tandem::serve
