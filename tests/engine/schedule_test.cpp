// Several requests: turns, waiting, cancellation, and faults that stay where they arose.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <gtest/gtest.h>
#include <limits>
#include <thread>

#include "device/device.h"
#include "engine/engine.h"
#include "scripted_engine.h"
#include "update_log.h"

namespace tandem::engine {
namespace {

using testing::scripted_engine;
using testing::ScriptedForward;
using testing::ScriptedOptions;
using testing::UpdateLog;

// Lets the step thread through one forward at a time.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || permits_ > 0; });
    if (!open_) --permits_;
  }
  void wait_for_arrivals(int count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return arrived_ >= count; }));
  }
  void permit(int count) {
    const std::lock_guard lock(mutex_);
    permits_ += count;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int permits_ = 0;
  bool open_ = false;
};

Request prompt_of(size_t tokens, int64_t max_tokens = 8) {
  Request request;
  request.prompt_ids = std::vector<int32_t>(tokens, 70);
  request.max_tokens = max_tokens;
  return request;
}

ScriptedOptions endless() {
  ScriptedOptions options;
  options.script = [](std::span<const int32_t>) { return std::vector<int32_t>(100000, 65); };
  return options;
}

struct Submitted {
  Engine::RequestId id;
  std::shared_ptr<UpdateLog> log;
};

Submitted start(Engine& engine, Request request) {
  auto log = UpdateLog::create();
  const auto id = engine.submit(std::move(request), UpdateLog::sink(log));
  return {id, log};
}

TEST(Schedule, AnswersGoOnBetweenTheChunksOfALongPrompt) {
  std::vector<int> order;
  Gate gate;
  auto options = endless();
  options.hook = [&](const ScriptedForward& forward) {
    order.push_back(forward.sequence);
    gate.pass();
  };
  const auto engine = scripted_engine(std::move(options));
  const auto first = start(*engine, prompt_of(10, 6));
  gate.wait_for_arrivals(1);
  const auto second = start(*engine, prompt_of(64 * 4, 1));
  gate.open();
  first.log->wait();
  second.log->wait();
  EXPECT_EQ(order, (std::vector<int>{0, 0, 1, 0, 1, 0, 1, 0, 1, 0}));
}

TEST(Schedule, RequestsBeyondTheConcurrencyWaitInOrder) {
  std::vector<int> starts;
  auto options = endless();
  options.hook = [&](const ScriptedForward& forward) {
    if (forward.begin == 0) starts.push_back(static_cast<int>(forward.tokens.size()));
  };
  auto limits = testing::scripted_limits();
  limits.max_concurrency = 2;
  const auto engine = scripted_engine(std::move(options), limits);
  std::vector<Submitted> requests;
  for (size_t i = 1; i <= 8; ++i) requests.push_back(start(*engine, prompt_of(i)));
  for (const auto& request : requests) EXPECT_EQ(request.log->wait().completion_tokens, 8);
  EXPECT_EQ(starts, (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(Schedule, AFullQueueTakesNoMore) {
  Gate gate;
  auto options = endless();
  options.hook = [&](const ScriptedForward&) { gate.pass(); };
  auto limits = testing::scripted_limits();
  limits.max_concurrency = 1;
  limits.max_queue = 2;
  const auto engine = scripted_engine(std::move(options), limits);
  const auto running = start(*engine, prompt_of(1));
  gate.wait_for_arrivals(1);
  const auto first = start(*engine, prompt_of(1));
  const auto second = start(*engine, prompt_of(1));
  EXPECT_EQ(engine->status().running, 1);
  EXPECT_EQ(engine->status().waiting, 2);
  try {
    start(*engine, prompt_of(1));
    ADD_FAILURE() << "accepted";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kOverloaded);
    EXPECT_STREQ(error.what(), "2 requests are waiting already, no more are taken");
  }
  gate.open();
  for (const auto& request : {running, first, second}) EXPECT_EQ(request.log->wait().reason, FinishReason::kLength);
}

TEST(Schedule, RequestsThatDoNotFitTheCapacityTogetherTakeTurns) {
  std::vector<int> order;
  auto options = endless();
  options.capacity_tokens = 256;
  options.hook = [&](const ScriptedForward& forward) { order.push_back(forward.sequence); };
  auto limits = testing::scripted_limits();
  limits.max_context = 256;
  const auto engine = scripted_engine(std::move(options), limits);
  const auto first = start(*engine, prompt_of(100, 50));
  const auto second = start(*engine, prompt_of(60, 60));  // 150 + 120 tokens are 3 + 2 pages of 4
  first.log->wait();
  second.log->wait();
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Schedule, CancellingEndsAnAnswerWithinOneStep) {
  Gate gate;
  std::atomic<int> forwards = 0;
  auto options = endless();
  options.hook = [&](const ScriptedForward&) {
    ++forwards;
    gate.pass();
  };
  const auto engine = scripted_engine(std::move(options));
  const auto request = start(*engine, prompt_of(1, 4000));
  gate.permit(3);
  gate.wait_for_arrivals(4);
  engine->cancel(request.id);
  gate.open();
  const Outcome outcome = request.log->wait();
  EXPECT_EQ(outcome.reason, FinishReason::kCancelled);
  EXPECT_EQ(forwards, 4);
}

TEST(Schedule, CancellingEndsAPromptWithinOneChunk) {
  Gate gate;
  std::atomic<int> forwards = 0;
  auto options = endless();
  options.hook = [&](const ScriptedForward&) {
    ++forwards;
    gate.pass();
  };
  const auto engine = scripted_engine(std::move(options));
  const auto request = start(*engine, prompt_of(3000));
  gate.wait_for_arrivals(1);
  engine->cancel(request.id);
  gate.open();
  const Outcome outcome = request.log->wait();
  EXPECT_EQ(outcome.reason, FinishReason::kCancelled);
  EXPECT_EQ(outcome.completion_tokens, 0);
  EXPECT_EQ(forwards, 1);
}

TEST(Schedule, CancellingAWaitingRequestEndsItWithoutAStep) {
  Gate gate;
  auto options = endless();
  std::atomic<int> sequences = 0;
  options.hook = [&](const ScriptedForward& forward) {
    sequences = std::max(sequences.load(), forward.sequence + 1);
    gate.pass();
  };
  auto limits = testing::scripted_limits();
  limits.max_concurrency = 1;
  const auto engine = scripted_engine(std::move(options), limits);
  const auto running = start(*engine, prompt_of(1, 3));
  gate.wait_for_arrivals(1);
  const auto waiting = start(*engine, prompt_of(1));
  engine->cancel(waiting.id);
  gate.permit(1);
  EXPECT_EQ(waiting.log->wait().reason, FinishReason::kCancelled);
  EXPECT_FALSE(running.log->ended());
  gate.open();
  EXPECT_EQ(running.log->wait().reason, FinishReason::kLength);
  EXPECT_EQ(sequences, 1);
}

TEST(Schedule, CancellingAnUnknownRequestDoesNothing) {
  const auto engine = scripted_engine(endless());
  const auto request = start(*engine, prompt_of(1, 2));
  request.log->wait();
  engine->cancel(request.id);
  engine->cancel(12345);
}

TEST(Schedule, AFaultEndsItsRequestAndNoOther) {
  auto options = endless();
  options.hook = [](const ScriptedForward& forward) {
    if (forward.sequence == 0 && forward.begin == 3) throw std::runtime_error("layer 7: column 0 is not finite");
  };
  const auto engine = scripted_engine(std::move(options));
  const auto faulty = start(*engine, prompt_of(1, 100));
  const auto other = start(*engine, prompt_of(1, 100));
  const Outcome outcome = faulty.log->wait();
  EXPECT_EQ(outcome.reason, FinishReason::kError);
  EXPECT_EQ(outcome.error_kind, base::ErrorKind::kInternal);
  EXPECT_EQ(outcome.error, "layer 7: column 0 is not finite");
  EXPECT_EQ(other.log->wait().completion_tokens, 100);
  EXPECT_EQ(start(*engine, prompt_of(1, 5)).log->wait().reason, FinishReason::kLength);
}

TEST(Schedule, LogitsThatAreNotFiniteEndTheirRequestOnly) {
  auto options = endless();
  options.hook = [](const ScriptedForward& forward) {
    if (forward.sequence == 0 && forward.begin == 2) forward.logits->at(5) = std::numeric_limits<float>::quiet_NaN();
  };
  const auto engine = scripted_engine(std::move(options));
  const Outcome outcome = start(*engine, prompt_of(1, 100)).log->wait();
  EXPECT_EQ(outcome.reason, FinishReason::kError);
  EXPECT_NE(outcome.error.find("not finite"), std::string::npos);
  EXPECT_EQ(start(*engine, prompt_of(1, 5)).log->wait().reason, FinishReason::kLength);
}

TEST(Schedule, AFullSlotTableIsThatRequestsError) {
  Gate gate;
  auto options = endless();
  options.slots = 1;
  options.hook = [&](const ScriptedForward&) { gate.pass(); };
  const auto engine = scripted_engine(std::move(options));
  const auto first = start(*engine, prompt_of(1, 50));
  gate.wait_for_arrivals(1);
  const auto second = start(*engine, prompt_of(1, 50));
  gate.open();
  EXPECT_EQ(first.log->wait().reason, FinishReason::kLength);
  const Outcome outcome = second.log->wait();
  EXPECT_EQ(outcome.reason, FinishReason::kError);
  EXPECT_EQ(outcome.error_kind, base::ErrorKind::kUnavailable);
}

TEST(Schedule, ASinkThatThrowsEndsItsRequestOnly) {
  const auto engine = scripted_engine(endless());
  std::atomic<int> calls = 0;
  engine->submit(prompt_of(1, 100), [&](const Update&) {
    ++calls;
    throw std::runtime_error("the client is gone");
  });
  const auto other = start(*engine, prompt_of(1, 200));
  EXPECT_EQ(other.log->wait().completion_tokens, 200);
  EXPECT_EQ(calls, 1);
}

TEST(Schedule, DestroyingTheEngineCancelsEverything) {
  Gate gate;
  auto options = endless();
  options.hook = [&](const ScriptedForward&) { gate.pass(); };
  auto limits = testing::scripted_limits();
  limits.max_concurrency = 1;
  auto engine = scripted_engine(std::move(options), limits);
  const auto running = start(*engine, prompt_of(1, 4000));
  gate.wait_for_arrivals(1);
  const auto waiting = start(*engine, prompt_of(1));
  std::thread destroyer([&] { engine.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gate.open();
  destroyer.join();
  EXPECT_EQ(running.log->wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(waiting.log->wait().reason, FinishReason::kCancelled);
}

TEST(Schedule, ManyClientsSubmitAndCancelAtOnce) {
  auto options = endless();
  auto limits = testing::scripted_limits();
  limits.max_concurrency = 4;
  limits.max_queue = 1000;
  const auto engine = scripted_engine(std::move(options), limits);
  std::vector<std::thread> clients;
  std::atomic<int> ended = 0;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 25; ++i) {
        const auto request = start(*engine, prompt_of(size_t{1} + static_cast<size_t>(i), 10 + i));
        if ((i + client) % 3 == 0) engine->cancel(request.id);
        const FinishReason reason = request.log->wait().reason;
        if (reason == FinishReason::kLength || reason == FinishReason::kCancelled) ++ended;
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(ended, 100);
  const EngineStatus status = engine->status();
  EXPECT_EQ(status.waiting, 0);
  EXPECT_GT(status.completion_tokens, 0);
}

TEST(Schedule, AFailedDeviceEndsEveryRequestAndTheEngine) {
  Gate gate;
  std::atomic<int> failures = 0;
  auto options = endless();
  options.hook = [&](const ScriptedForward& forward) {
    gate.pass();
    if (forward.begin > 0) throw device::Fault("cuda", "an illegal memory access was encountered");
  };
  auto limits = testing::scripted_limits();
  limits.max_concurrency = 1;
  limits.on_failure = [&] { ++failures; };
  auto engine = scripted_engine(std::move(options), limits);
  const auto running = start(*engine, prompt_of(3));
  gate.wait_for_arrivals(1);
  const auto waiting = start(*engine, prompt_of(2));
  gate.open();
  for (const auto& request : {running, waiting}) {
    const Outcome outcome = request.log->wait();
    EXPECT_EQ(outcome.reason, FinishReason::kError);
    EXPECT_NE(outcome.error.find("illegal memory access"), std::string::npos) << outcome.error;
  }
  EXPECT_NE(engine->status().failure.find("illegal memory access"), std::string::npos);
  EXPECT_THROW(start(*engine, prompt_of(1)), base::Error);
  engine.reset();  // the step thread has ended
  EXPECT_EQ(failures, 1);
}

}  // namespace
}  // namespace tandem::engine
