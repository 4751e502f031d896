#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <new>
#include <string>

#include "base/error.h"
#include "base/version.h"
#include "commands.h"

namespace tandem::app {
namespace {

void add_commands(CLI::App& app) {
  app.require_subcommand(1);
  add_convert(app);
  add_verify(app);
  add_inspect(app);
}

int fail(int code, const std::string& message) {
  fmt::print(stderr, "tandem: {}\n", message);
  return code;
}

int run(int argc, char** argv) {
  CLI::App app("Tandem: a local inference server for Qwen3.8-27B and Qwen3.8-Flash-Next", "tandem");
  app.set_version_flag("--version", "tandem " + base::build_description());
  add_commands(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return fail(2, error.what());
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

}  // namespace
}  // namespace tandem::app

int main(int argc, char** argv) {
  return tandem::app::run(argc, argv);
}
