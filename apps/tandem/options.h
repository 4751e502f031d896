// The options that several subcommands share, each defined once: name, environment variable, config file key, default
// and help come from here, and docs/options.md is printed from it (`tandem options --markdown`).
//
// A setting is an option that may also come from the environment (TANDEM_MAX_CONTEXT for --max-context) or from the
// config file (max-context = 8192). The command line comes first, then the environment, then the file.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "base/cpu.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "text/message.h"

namespace tandem::app {

// Makes an option with a long name a setting. Value checks belong into the option's own function or behind the parse,
// not into CLI validators, which CLI11 does not apply to the environment in every version.
CLI::Option* setting(CLI::Option* option);
// An option that belongs to one call and is not read from the environment or the file.
CLI::Option* per_call(CLI::Option* option);

// An option whose value is a number of bytes, as 500MiB; `bytes` holds the default.
CLI::Option* add_size(CLI::App& command, const std::string& name, uint64_t& bytes, const std::string& help);

// MODEL and the machine options.
void add_model_options(CLI::App& command, engine::EngineOptions& options);
// The instruction sets of the kernels; none takes the processor's best.
void add_isa_option(CLI::App& command, std::optional<base::CpuLevel>& isa);
// Where and how to compute.
void add_machine_options(CLI::App& command, engine::EngineOptions& options);
void add_context_options(CLI::App& command, engine::EngineOptions& options);
// How many requests run and wait.
void add_concurrency_options(CLI::App& command, engine::EngineOptions& options);
void add_sampling_options(CLI::App& command, engine::SamplingRequest& sampling);
void add_thinking_options(CLI::App& command, text::TemplateOptions& options);

// --config for all commands. Call it after the commands have been added.
void add_config_file(CLI::App& root);

// The table of all settings, as docs/options.md has it and for a terminal.
std::string options_text(const CLI::App& root);
std::string options_markdown(const CLI::App& root);

}  // namespace tandem::app
