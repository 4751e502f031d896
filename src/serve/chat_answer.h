// The answer of OpenAI's /v1/chat/completions: one object, or chunks of a stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "serve/http.h"

namespace tandem::serve {

// What an answer says about itself.
struct ChatIdentity {
  std::string id;       // "chatcmpl-…"
  std::string model;    // the model that answers
  int64_t created = 0;  // seconds since 1970
};

ChatIdentity new_chat_identity(const std::string& model);

// Which tool calls of the model are passed on.
struct ChatToolPolicy {
  bool parallel = true;  // false: only the first
};

base::Json usage_json(const engine::Outcome& outcome);

// Names the calls of one answer and leaves out those that were not asked for.
class ToolCallNames {
 public:
  explicit ToolCallNames(ChatToolPolicy policy) : policy_(policy) {}
  bool passed_on(int tool_call) const { return policy_.parallel || tool_call == 0; }
  const std::string& id(int tool_call);  // "call_…", the same for the same call

 private:
  ChatToolPolicy policy_;
  std::vector<std::string> ids_;
};

// Collects the events of an answer that is sent whole. Not thread-safe.
class ChatCompletion {
 public:
  ChatCompletion(ChatIdentity identity, ChatToolPolicy policy) : identity_(std::move(identity)), names_(policy) {}

  void add(const std::vector<text::OutputEvent>& events);
  // 200 with the completion, or the outcome's error.
  HttpResponse finish(const engine::Outcome& outcome);

 private:
  struct Call {
    std::string name;
    std::string arguments;
  };
  base::Json message();

  ChatIdentity identity_;
  ToolCallNames names_;
  std::string content_;
  std::string reasoning_;
  std::vector<Call> calls_;
};

// Turns the events of an answer into the event stream's text. Not thread-safe.
class ChatStream {
 public:
  ChatStream(ChatIdentity identity, ChatToolPolicy policy, bool include_usage);

  std::string begin() const;  // the chunk that names the role
  std::string add(const std::vector<text::OutputEvent>& events);
  // The finish reason, the usage where it was asked for, and "[DONE]"; or an error event and "[DONE]".
  std::string finish(const engine::Outcome& outcome);

 private:
  std::string chunk(const base::Json& delta, const std::string& finish_reason = "null") const;
  base::Json delta(const text::OutputEvent& event);

  std::string head_;  // of every chunk, up to its choices
  bool include_usage_;
  ToolCallNames names_;
};

}  // namespace tandem::serve
