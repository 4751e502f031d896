// Runs tools/read_artifact.py on an artifact that a test has made.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint_folder.h"

namespace tandem::testing {

class PythonReader : public ::testing::Test {
 public:
  static std::filesystem::path script() { return std::filesystem::path(TANDEM_SOURCE_DIR) / "tools/read_artifact.py"; }

 protected:
  void SetUp() override { require_python(); }
  void require_python() {
    static const bool installed = run({"--version"}) == 0;
    if (!installed) GTEST_SKIP() << "python3 is not installed";
  }

  // python3 with these arguments; what it prints goes to output_. Returns the exit code.
  int run(const std::vector<std::string>& arguments) {
    const std::filesystem::path output = folder_ / "output";
    std::vector<const char*> argv = {"python3", "-I", "-S"};  // the standard library alone
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const int fd = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      ::dup2(fd, STDOUT_FILENO);
      ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
      ::execvp("python3", const_cast<char* const*>(argv.data()));
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    output_ = std::filesystem::exists(output) ? base::read_text(output, 1 << 28) : "";
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int read(const std::vector<std::string>& command) {
    const bool values = !command.empty() && command[0] == "values";
    std::vector<std::string> arguments = {
        (script().parent_path() / (values ? "artifact_values.py" : "read_artifact.py")).string(), out_.string()};
    arguments.insert(arguments.end(), command.begin() + (values ? 1 : 0), command.end());
    return run(arguments);
  }
  std::string source_bytes(const std::filesystem::path& source, const std::string& name) {
    const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(source);
    const std::vector<std::byte> bytes = checkpoint.read(checkpoint.at(name));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  TempFolder folder_;
  std::filesystem::path out_ = folder_ / "model.tandem";
  std::string output_;
};

}  // namespace tandem::testing
