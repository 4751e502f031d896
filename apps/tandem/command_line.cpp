#include "command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <new>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "commands.h"
#include "options.h"

namespace tandem::app {
namespace {

constexpr const char* kAbout =
    "Tandem: a local inference server for Qwen3.8-27B and Qwen3.8-Flash-Next.\n"
    "Convert a published checkpoint once, then run, chat with or serve the artifact.";

constexpr const char* kExamples =
    "Examples:\n"
    "  tandem convert models/demo-flash -o demo-flash.tandem\n"
    "  tandem chat demo-flash.tandem\n"
    "  tandem serve demo-flash.tandem --port 8080\n"
    "`tandem COMMAND --help` tells a command's options and examples.\n"
    "Exit codes: 0 done, 1 a negative answer, 2 bad input or a machine that lacks something, 3 a fault of Tandem.";

// --config and --log-level may come before the command's name or after it.
void let_settings_stand_anywhere(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    command->fallthrough();
    let_settings_stand_anywhere(*command);
  }
}

void define(CLI::App& app, std::string& log_level) {
  app.set_version_flag("--version", "tandem " + base::build_description());
  app.require_subcommand(1);
  app.footer(kExamples);
  setting(app.add_option("--log-level", log_level, "What to log to standard error: debug, info, warn, error, off"))
      ->capture_default_str();
  add_convert(app);
  add_verify(app);
  add_inspect(app);
  add_run(app);
  add_chat(app);
  add_score(app);
  add_serve(app);
  add_bench(app);
  add_synth(app);
  add_plan(app);
  add_selftest(app);
  add_options(app);
  let_settings_stand_anywhere(app);
  add_config_file(app);
  // Runs once the settings are known and before the command.
  app.parse_complete_callback([&log_level] { base::start_logging(log_level); });
}

// One line, whatever the message holds.
int fail(int code, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "tandem: {}\n", message);
  return code;
}

// Where no command was recognised, CLI11 only says that one is required; the word that was meant helps more.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const auto words = app.remaining();
  if (app.get_subcommands().empty() && !words.empty()) return fmt::format("there is no command '{}'", words.front());
  return error.what();
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  CLI::App app(kAbout, "tandem");
  std::string log_level = "info";
  try {
    define(app, log_level);
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return fail(2, usage_error(app, error) + " (tandem --help tells how)");
  } catch (const NegativeAnswer&) {
    return 1;
  } catch (const base::Error& error) {
    return fail(base::exit_code(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(2, "out of memory");
  } catch (const std::exception& error) {
    return fail(3, error.what());
  }
}

}  // namespace tandem::app
