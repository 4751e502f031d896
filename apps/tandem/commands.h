// The subcommands of `tandem`. Each add_X defines one: its options and, as its callback, what it does.
//
// A callback prints its answer to standard output and returns: exit code 0. For anything else it throws: base::Error
// for bad input (2) or a fault of Tandem itself (3), of which main prints one line to standard error, or NegativeAnswer
// where the command worked and the answer is no (1), with nothing more printed.
#pragma once

#include <CLI/CLI.hpp>

namespace tandem::app {

struct NegativeAnswer {};

void add_convert(CLI::App& app);
void add_verify(CLI::App& app);
void add_inspect(CLI::App& app);
void add_run(CLI::App& app);
void add_chat(CLI::App& app);
void add_score(CLI::App& app);
void add_serve(CLI::App& app);
void add_bench(CLI::App& app);
void add_synth(CLI::App& app);
void add_plan(CLI::App& app);
void add_selftest(CLI::App& app);
void add_options(CLI::App& app);  // prints the table of settings

}  // namespace tandem::app
