#include "serve/http/request_log.h"

#include <chrono>
#include <fmt/chrono.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/spdlog.h>

#include "base/error.h"
#include "serve/http/errors.h"

namespace tandem::serve {

namespace {

std::string time_text() {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                     milliseconds % 1000);
}

}  // namespace

RequestLog::RequestLog(const RequestLogOptions& options) {
  try {
    const auto sink = std::make_shared<spdlog::sinks::rotating_file_sink_mt>(options.file.string(), options.file_bytes,
                                                                             options.files - 1);
    sink->set_pattern("%v");
    logger_ = std::make_shared<spdlog::logger>("requests", sink);
  } catch (const spdlog::spdlog_ex& error) {
    base::bad_input(options.file.string(), "the request log can't be written: {}", error.what());
  }
  logger_->flush_on(spdlog::level::info);
  logger_->set_error_handler(
      [](const std::string& message) { spdlog::warn("the request log lost a line: {}", message); });
}

RequestLog::~RequestLog() = default;

void RequestLog::write(const base::Json& members) {
  base::Json line = {{"time", time_text()}};
  line.update(members);
  logger_->info("{}", dump(line));
}

}  // namespace tandem::serve
