// A file with one JSON object a line for each request: who did what, how it ended and how long it took; never a query,
// a header, a key or any text of prompts and answers (docs/security.md).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "base/json.h"

namespace spdlog {
class logger;
}

namespace tandem::serve {

struct RequestLogOptions {
  std::filesystem::path file{};  // empty: no log
  size_t file_bytes = 16 << 20;  // a file that is full becomes FILE.1, and so on: the oldest of `files` is dropped
  size_t files = 4;
};

// Thread-safe.
class RequestLog {
 public:
  // Throws base::Error{kBadInput} where the file can't be written.
  explicit RequestLog(const RequestLogOptions& options);
  ~RequestLog();

  // Writes the members after the time, "time": "2026-11-30T12:00:00.123Z". A disk that is full loses the line and no
  // more.
  void write(const base::Json& members);

 private:
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace tandem::serve
