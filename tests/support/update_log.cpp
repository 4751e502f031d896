#include "update_log.h"

#include <chrono>
#include <gtest/gtest.h>
#include <utility>

namespace tandem::testing {
namespace {

constexpr std::chrono::seconds kPatience{20};

}  // namespace

engine::UpdateSink UpdateLog::sink(std::shared_ptr<UpdateLog> log) {
  return [log = std::move(log)](const engine::Update& update) {
    const std::lock_guard lock(log->mutex_);
    if (!log->updates_.empty() && log->updates_.back().outcome) ADD_FAILURE() << "an update after the outcome";
    log->updates_.push_back(update);
    log->changed_.notify_all();
  };
}

engine::Outcome UpdateLog::wait() {
  std::unique_lock lock(mutex_);
  const bool in_time =
      changed_.wait_for(lock, kPatience, [this] { return !updates_.empty() && updates_.back().outcome.has_value(); });
  if (in_time) return *updates_.back().outcome;
  ADD_FAILURE() << "the request has not ended after " << updates_.size() << " updates";
  return {};
}

void UpdateLog::wait_for_updates(size_t count) {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return updates_.size() >= count; }));
}

bool UpdateLog::ended() const {
  const std::lock_guard lock(mutex_);
  return !updates_.empty() && updates_.back().outcome.has_value();
}

std::vector<engine::Update> UpdateLog::updates() const {
  const std::lock_guard lock(mutex_);
  return updates_;
}

std::string UpdateLog::text(text::OutputEvent::Kind kind) const {
  std::string text;
  for (const auto& update : updates()) {
    for (const auto& event : update.events) {
      if (event.kind == kind) text += event.text;
    }
  }
  return text;
}

}  // namespace tandem::testing
