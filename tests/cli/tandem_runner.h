// Runs the built `tandem` in a folder of its own, for tests of what users see.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "base/file.h"

namespace tandem::testing {

struct Result {
  int code = -1;
  std::string out;
  std::string error;
};

inline std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// A folder of this process; removed at the end.
class TandemRunner {
 public:
  explicit TandemRunner(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() / (name + "-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~TandemRunner() { std::filesystem::remove_all(folder_); }
  TandemRunner(const TandemRunner&) = delete;
  TandemRunner& operator=(const TandemRunner&) = delete;

  // `environment` is as the shell writes it before a command: "TANDEM_DEVICE=sim".
  Result run(const std::vector<std::string>& arguments, const std::string& environment = "",
             const std::string& input = "") const {
    std::string command = environment + " " + quoted(TANDEM_BINARY);
    for (const auto& argument : arguments) command += " " + quoted(argument);
    command += " >" + quoted(path("stdout")) + " 2>" + quoted(path("stderr")) + " <" + quoted(file("stdin", input));
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, base::read_text(path("stdout"), 1 << 20),
            base::read_text(path("stderr"), 1 << 20)};
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string file(const std::string& name, const std::string& text) const {
    base::write_text(path(name), text);
    return path(name);
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace tandem::testing
