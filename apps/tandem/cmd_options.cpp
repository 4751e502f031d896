#include <fmt/format.h>
#include <memory>

#include "commands.h"
#include "options.h"

namespace tandem::app {

void add_options(CLI::App& app) {
  CLI::App* command = app.add_subcommand("options", "Print every setting with its environment variable and default");
  const auto markdown = std::make_shared<bool>(false);
  per_call(command->add_flag("--markdown", *markdown, "As docs/options.md has it"));
  command->callback([&app, markdown] {
    if (*markdown) {
      fmt::print("{}", options_markdown(app));
    } else {
      fmt::print("{}", options_text(app));
    }
  });
}

}  // namespace tandem::app
