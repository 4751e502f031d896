// The built `tandem` as a process of a test.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <regex>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/file.h"

namespace tandem::test {

class Process {
 public:
  Process(std::vector<std::string> arguments, const std::string& out, const std::string& error) : out_(out) {
    std::vector<char*> words{const_cast<char*>(TANDEM_BINARY)};
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    unsetenv("TANDEM_API_KEY");
    const int out_fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int error_fd = open(error.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out_fd < 0 || error_fd < 0) _exit(127);
    dup2(out_fd, STDOUT_FILENO);
    dup2(error_fd, STDERR_FILENO);
    execv(TANDEM_BINARY, words.data());
    _exit(127);
  }
  ~Process() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    wait_for_end();
  }
  void signal(int number) const { kill(pid_, number); }
  // The exit code; -1 where a signal ended it.
  int wait_for_end() {
    if (pid_ <= 0) return code_;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // The port of the line "listening on http://127.0.0.1:PORT"; 0 where it does not come.
  uint16_t port() const {
    for (int i = 0; i < 2000; ++i) {
      std::smatch match;
      const std::string text = std::filesystem::exists(out_) ? base::read_text(out_, 1 << 20) : "";
      if (std::regex_search(text, match, std::regex("listening on http://127\\.0\\.0\\.1:([0-9]+)\n"))) {
        return static_cast<uint16_t>(std::stoi(match[1]));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return 0;
  }

 private:
  std::string out_;
  pid_t pid_ = -1;
  int code_ = -1;
};

}  // namespace tandem::test
