#include <atomic>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

#include "base/error.h"
#include "commands.h"
#include "generate.h"
#include "options.h"
#include "terminal.h"

namespace tandem::app {
namespace {

struct ChatOptions {
  engine::EngineOptions engine;
  engine::SamplingRequest sampling;
  text::TemplateOptions thinking;
  std::optional<std::string> system;
  std::optional<int64_t> max_tokens;
};

std::atomic<bool> interrupted = false;

// While it lives, Ctrl-C ends the answer instead of the program.
class InterruptEndsAnswer {
 public:
  InterruptEndsAnswer() {
    interrupted = false;
    previous_ = std::signal(SIGINT, [](int) { interrupted = true; });
  }
  ~InterruptEndsAnswer() { std::signal(SIGINT, previous_); }
  InterruptEndsAnswer(const InterruptEndsAnswer&) = delete;
  InterruptEndsAnswer& operator=(const InterruptEndsAnswer&) = delete;

 private:
  void (*previous_)(int) = nullptr;
};

class Chat {
 public:
  explicit Chat(const ChatOptions& options) : options_(options), engine_(options.engine) { reset(); }

  void loop() {
    const bool terminal = isatty(STDIN_FILENO) != 0;
    if (terminal) {
      fmt::print("{}, {} tokens of context. /reset begins anew, /exit or Ctrl-D ends, Ctrl-C stops an answer.\n",
                 engine_.model_name(), engine_.status().max_context);
    }
    std::string line;
    while (true) {
      if (terminal) {
        fmt::print("> ");
        std::fflush(stdout);
      }
      if (!std::getline(std::cin, line) || line == "/exit") break;
      if (line == "/reset") {
        reset();
      } else if (line.starts_with('/')) {
        fmt::print(stderr, "there is no {}; there are /reset and /exit\n", line);
      } else if (!line.empty()) {
        turn(line);
      }
    }
  }

 private:
  void reset() {
    conversation_.clear();
    if (options_.system) conversation_.push_back(text_message(text::Role::kSystem, *options_.system));
  }

  void turn(const std::string& line) {
    engine::Request request;
    request.messages = conversation_;
    request.messages.push_back(text_message(text::Role::kUser, line));
    request.template_options = options_.thinking;
    request.sampling = options_.sampling;
    request.max_tokens = options_.max_tokens;
    std::vector<text::Message> said = request.messages;
    AnswerPrinter printer;
    const InterruptEndsAnswer guard;
    try {
      GeneratedAnswer answer = generate(
          engine_, std::move(request), [&](const text::OutputEvent& event) { printer.print(event); }, &interrupted);
      printer.finish();
      text::Message reply = text_message(text::Role::kAssistant, std::move(answer.text));
      reply.reasoning = std::move(answer.reasoning);
      reply.tool_calls = std::move(answer.tool_calls);
      said.push_back(std::move(reply));
      conversation_ = std::move(said);
    } catch (const engine::PromptTooLong& error) {
      fmt::print(stderr, "{}; /reset begins anew\n", error.what());
    }
  }

  ChatOptions options_;
  engine::Engine engine_;
  std::vector<text::Message> conversation_;
};

}  // namespace

void add_chat(CLI::App& app) {
  const auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Hold a conversation in the terminal");
  add_model_options(*command, options->engine);
  per_call(command->add_option("--system", options->system, "The system message"))->type_name("TEXT");
  per_call(command->add_option("--max-tokens", options->max_tokens, "Tokens of an answer at most"));
  add_thinking_options(*command, options->thinking);
  add_sampling_options(*command, options->sampling);
  add_context_options(*command, options->engine);
  command->footer(
      "Every line is a message; /reset begins anew, /exit ends. Lines may also be piped in.\n\n"
      "Examples:\n"
      "  tandem chat demo-flash.tandem\n"
      "  printf 'My name is Ada.\\nWhat is my name?\\n' | tandem chat demo-flash.tandem --no-thinking");
  command->callback([options] {
    options->engine.max_concurrency = 1;
    Chat(*options).loop();
  });
}

}  // namespace tandem::app
