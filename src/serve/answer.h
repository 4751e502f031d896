// An answer on its way from the engine to the client, in the words of one API.
//
// An endpoint reads its request into an AnswerJob, with a format for a streamed answer or for a whole one; start_answer
// does the rest: it submits the request, once for each choice, passes every update to the format, cancels what nobody
// waits for any more, and tells the metrics.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "serve/http/errors.h"
#include "serve/http/exchange.h"
#include "serve/http/router.h"
#include "serve/service.h"

namespace tandem::serve {

struct AnsweredCall {
  std::string name;
  std::string arguments;  // JSON text of an object
};

// One whole choice of an answer.
struct CollectedAnswer {
  std::string reasoning;
  std::string content;
  std::vector<AnsweredCall> calls;
  std::vector<engine::StepLogprobs> logprobs;
  engine::Outcome outcome;

  void add(const engine::Update& update);
};

// Makes the body of an answer that is sent whole. Used by one thread at a time.
class WholeFormat {
 public:
  virtual ~WholeFormat() = default;
  // All choices have ended, none of them failed.
  virtual HttpResponse answer(const std::vector<CollectedAnswer>& choices) = 0;
};

// Makes the text of a streamed answer, events with all that belongs to them; an empty text sends nothing. Used by one
// thread at a time.
class StreamFormat {
 public:
  virtual ~StreamFormat() = default;
  virtual const char* content_type() const { return kEventStream; }
  virtual std::string begin(int64_t prompt_tokens) = 0;
  // News of a choice; where update.outcome is set, this choice has ended well.
  virtual std::string add(int choice, const engine::Update& update) = 0;
  // The prompt is being read.
  virtual std::string progress(const engine::Progress& progress);
  // All choices have ended well.
  virtual std::string end() = 0;
  // The answer can't go on; nothing follows.
  virtual std::string fail(const ApiError& error) = 0;
};

struct AnswerJob {
  engine::Request request;
  // Several prompts, each for the same number of choices in turn, in place of the request's own one.
  std::vector<std::vector<int32_t>> prompts{};
  const char* prompt_field = "messages";  // named where a prompt is too long
  int choices = 1;                        // of all prompts; with the request's seed, the choice's index is added to it
  bool parallel_tool_calls = true;        // false: only the first call is passed on
  std::string request_id = {};            // for errors that tell it in the body
  // One of the two.
  std::unique_ptr<StreamFormat> stream;
  std::unique_ptr<WholeFormat> whole;
};

inline constexpr int kMostChoices = 32;

// Answers through `reply`. Throws base::Error where the request is refused; nothing is sent then. An error after that
// is sent in the words of `errors` (whole) or of the format (stream).
void start_answer(const Service& service, AnswerJob job, ErrorFormat errors, Reply reply);

// "event: NAME\ndata: DATA\n\n" as server-sent events are written; without a name only the data.
std::string sse_event(const std::string& data);
std::string sse_event(const std::string& name, const base::Json& data);

// 24 random hexadecimal digits, for the ids of answers and calls.
std::string random_id(const std::string& prefix);

int64_t unix_seconds();

}  // namespace tandem::serve
