// Ollama's /api/chat: the request as the engine takes it, and the answer, one JSON object or one a line.
#pragma once

#include <string>

#include "serve/answer.h"
#include "serve/output_format.h"
#include "serve/tools.h"

namespace tandem::serve {

struct OllamaChat {
  engine::Request request;  // without a grammar
  ToolRequest tools;
  OutputFormat format;
  std::string model;
  bool stream = true;
};

// Throws base::Error{kBadInput} whose source is the field. Fields it does not know are ignored, among them the options
// that say how Ollama loads a model.
OllamaChat ollama_chat(const base::Json& body);

class OllamaAnswer : public WholeFormat {
 public:
  explicit OllamaAnswer(std::string model) : model_(std::move(model)) {}
  HttpResponse answer(const std::vector<CollectedAnswer>& choices) override;

 private:
  std::string model_;
};

class OllamaStream : public StreamFormat {
 public:
  explicit OllamaStream(std::string model) : model_(std::move(model)) {}

  const char* content_type() const override { return "application/x-ndjson"; }
  std::string begin(int64_t) override { return {}; }
  std::string add(int choice, const engine::Update& update) override;
  std::string progress(const engine::Progress&) override { return {}; }  // lines are objects: there are no comments
  std::string end() override { return {}; }
  std::string fail(const ApiError& error) override;

 private:
  std::string line(const base::Json& message) const;

  std::string model_;
  AnsweredCall call_;  // being written: it is sent whole
};

// {"error": MESSAGE}.
HttpResponse ollama_error(const ApiError& error);

}  // namespace tandem::serve
