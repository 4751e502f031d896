// The one error type of the project (docs/architecture.md, "Errors").
//
// An Error is thrown where a fault is seen and caught at the edge of a command, a request or a rank; never on a hot
// path. Its message is one line that names the thing at fault and the figures; `source` names the file, the request
// field or the component it came from.
#pragma once

#include <fmt/format.h>
#include <stdexcept>
#include <string>
#include <utility>

namespace tandem::base {

enum class ErrorKind {
  kBadInput,     // the caller's file, request or option is wrong: exit code 2, HTTP 400
  kUnavailable,  // the machine lacks what is needed now (memory, disk, a device, a port): exit code 2, HTTP 503
  kOverloaded,   // there is more to do than may wait, trying again later helps: exit code 2, HTTP 429
  kCancelled,    // the caller went away or asked to stop
  kInternal,     // a fault of Tandem itself: exit code 3, HTTP 500
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string source, const std::string& message)
      : std::runtime_error(source.empty() ? message : source + ": " + message),
        kind_(kind),
        source_(std::move(source)),
        message_(message) {}

  ErrorKind kind() const { return kind_; }
  const std::string& source() const { return source_; }
  const std::string& message() const { return message_; }  // without the source; what() has both

 private:
  ErrorKind kind_;
  std::string source_;
  std::string message_;
};

// Throws Error{kBadInput}; the rest is a fmt format string with its arguments.
template <typename... Args>
[[noreturn]] void bad_input(std::string source, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kBadInput, std::move(source), fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void unavailable(std::string source, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kUnavailable, std::move(source), fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void internal_error(std::string source, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kInternal, std::move(source), fmt::format(format, std::forward<Args>(args)...));
}

// The process exit code of a command that ended with an error of this kind: 2 bad input or unavailable, 3 internal.
inline int exit_code(ErrorKind kind) {
  return kind == ErrorKind::kInternal ? 3 : 2;
}

}  // namespace tandem::base
