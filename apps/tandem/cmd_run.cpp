#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "commands.h"
#include "generate.h"
#include "options.h"
#include "terminal.h"
#include "token_file.h"

namespace tandem::app {
namespace {

struct RunOptions {
  engine::EngineOptions engine;
  engine::SamplingRequest sampling;
  text::TemplateOptions thinking;
  std::optional<std::string> prompt;
  std::optional<std::string> system;
  std::optional<std::string> ids;
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;
  bool json = false;
  bool raw = false;
};

// "-" stands for standard input.
std::string prompt_text(const RunOptions& options) {
  std::string prompt = options.prompt.value_or("");
  if (prompt != "-") return prompt;
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

engine::Request make_request(const RunOptions& options, const engine::Engine& engine) {
  engine::Request request;
  request.sampling = options.sampling;
  request.template_options = options.thinking;
  request.max_tokens = options.max_tokens;
  request.stop = options.stop;
  request.raw = options.raw;
  if (options.ids) {
    request.prompt_ids = read_token_ids(*options.ids);
  } else if (options.raw) {
    request.prompt_ids = engine.tokenizer().encode(prompt_text(options), text::AddedTokens::kParse);
  } else {
    if (options.system) request.messages.push_back(text_message(text::Role::kSystem, *options.system));
    request.messages.push_back(text_message(text::Role::kUser, prompt_text(options)));
  }
  return request;
}

void run(RunOptions options) {
  if (options.prompt.has_value() == options.ids.has_value()) {
    base::bad_input("run", "give either a prompt or --ids FILE");
  }
  if (options.system && (options.raw || options.ids)) {
    base::bad_input("run", "--system belongs to a conversation, not to --raw or --ids");
  }
  options.engine.max_concurrency = 1;
  engine::Engine engine(options.engine);
  engine::Request request = make_request(options, engine);
  if (options.json) {
    const auto answer = generate(engine, std::move(request), [](const text::OutputEvent&) {});
    fmt::print("{}\n", answer_json(answer).dump(-1, ' ', false, base::Json::error_handler_t::replace));
    return;
  }
  AnswerPrinter printer;
  const auto answer =
      generate(engine, std::move(request), [&](const text::OutputEvent& event) { printer.print(event); });
  printer.finish();
  fmt::print(stderr, "{}{}\n", speed_line(answer.outcome),
             answer.outcome.reason == engine::FinishReason::kLength ? ", ended by the token limit" : "");
}

}  // namespace

void add_run(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Answer one prompt");
  add_model_options(*command, options->engine);
  per_call(command->add_option("prompt", options->prompt, "What to say to the model; - reads standard input"))
      ->type_name("PROMPT");
  per_call(command->add_option("--system", options->system, "The system message"))->type_name("TEXT");
  per_call(command->add_option("--ids", options->ids, "Continue these tokens instead: a file with a JSON array of ids"))
      ->type_name("FILE");
  per_call(command->add_flag("--raw", options->raw, "Continue the prompt's own text, without a chat template"));
  per_call(command->add_option("--max-tokens", options->max_tokens, "Tokens of the answer at most"));
  per_call(command->add_option("--stop", options->stop, "Text that ends the answer; may be given several times"))
      ->type_name("TEXT")
      ->expected(1)
      ->take_all();
  per_call(command->add_flag("--json", options->json, "Print one JSON object when the answer is complete"));
  add_thinking_options(*command, options->thinking);
  add_sampling_options(*command, options->sampling);
  add_context_options(*command, options->engine);
  command->footer(
      "Examples:\n"
      "  tandem run demo-flash.tandem \"What is 27 + 58?\"\n"
      "  tandem run demo-flash.tandem --no-thinking --temperature 0 \"Hello, who are you?\"\n"
      "  echo \"Hello\" | tandem run demo-flash.tandem - --json");
  command->callback([options] { run(*options); });
}

}  // namespace tandem::app
