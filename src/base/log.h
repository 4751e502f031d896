// Logging goes through spdlog to standard error, so that standard output holds only what a command answers.
#pragma once

#include <spdlog/spdlog.h>
#include <string>

namespace tandem::base {

// Sets the pattern and the level ("debug", "info", "warn", "error", "off"); an Error names any other word.
void start_logging(const std::string& level);

}  // namespace tandem::base
