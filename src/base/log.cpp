#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "base/error.h"

namespace tandem::base {

void start_logging(const std::string& level) {
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    bad_input("--log-level", "\"{}\" is not one of debug, info, warn, error, off", level);
  }
  auto logger = spdlog::stderr_color_mt("tandem");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace tandem::base
