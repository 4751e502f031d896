// Collects a request's updates and lets a test wait for them.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/request.h"

namespace tandem::testing {

// Thread-safe; shared with the sink, so it may outlive or be outlived by the engine.
class UpdateLog {
 public:
  static std::shared_ptr<UpdateLog> create() { return std::make_shared<UpdateLog>(); }

  // A sink that writes into `log`.
  static engine::UpdateSink sink(std::shared_ptr<UpdateLog> log);

  // Waits for the end; fails the test (and gives a default outcome) where it does not come within 20 seconds.
  engine::Outcome wait();
  // Waits until this many updates have come.
  void wait_for_updates(size_t count);

  bool ended() const;
  std::vector<engine::Update> updates() const;
  // The text of all events of a kind.
  std::string text(text::OutputEvent::Kind kind) const;
  std::string content() const { return text(text::OutputEvent::Kind::kContent); }
  std::string reasoning() const { return text(text::OutputEvent::Kind::kReasoning); }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<engine::Update> updates_;
};

}  // namespace tandem::testing
