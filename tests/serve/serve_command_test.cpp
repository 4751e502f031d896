// `tandem serve` as a process: what it prints, how it ends.
#include <algorithm>
#include <filesystem>
#include <gmock/gmock.h>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "http_client.h"
#include "serve_process.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::Process;
using ::testing::HasSubstr;

class ServeCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::filesystem::create_directories(kFolder);
    Process convert({"convert", TANDEM_SOURCE_DIR "/models/demo-flash", "-o", kModel}, path("out"), path("error"));
    ASSERT_EQ(convert.wait_for_end(), 0) << base::read_text(path("error"), 1 << 20);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(kFolder); }

  static std::string path(const std::string& name) { return (kFolder / name).string(); }

  // Exit code 2 and one line that holds `part`.
  static void expect_refused(std::vector<std::string> options, const std::string& part) {
    options.insert(options.begin(), {"serve", kModel});
    Process process(options, path("out"), path("error"));
    EXPECT_EQ(process.wait_for_end(), 2);
    const std::string error = base::read_text(path("error"), 1 << 20);
    EXPECT_EQ(base::read_text(path("out"), 1 << 20), "");
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
    EXPECT_THAT(error, HasSubstr(part));
  }

  static inline const std::filesystem::path kFolder =
      std::filesystem::temp_directory_path() / ("tandem-serve-" + std::to_string(getpid()));
  static inline const std::string kModel = (kFolder / "demo.tandem").string();
};

TEST_F(ServeCommand, LoadsAnswersAndEndsOnSigterm) {
  Process process({"serve", kModel, "--port", "0", "--threads", "1"}, path("serve-out"), path("serve-error"));
  const uint16_t port = process.port();
  ASSERT_NE(port, 0);
  for (int i = 0; i < 2000 && test::fetch(port, test::get("/health")).status != 200; ++i) {
    std::this_thread::sleep_for(5ms);
  }
  const auto answer = test::fetch(port, test::post("/v1/chat/completions", R"({"messages":[{"role":"user",
      "content":"Secret plans"}],"enable_thinking":false,"temperature":0,"max_tokens":8})"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const base::Json usage = base::parse_json(answer.body, "answer").at("usage");
  EXPECT_GT(usage.at("completion_tokens"), 0);

  expect_refused({"--port", std::to_string(port)}, "port " + std::to_string(port) + " of 127.0.0.1 is in use");

  const auto start = std::chrono::steady_clock::now();
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait_for_end(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  const std::string log = base::read_text(path("serve-error"), 1 << 20);
  EXPECT_THAT(log, HasSubstr("POST /v1/chat/completions 200"));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("Secret"))) << "prompts are not logged";
}

TEST_F(ServeCommand, RefusesWhatItCannotServeInOneLine) {
  expect_refused({"--host", "0.0.0.0"}, "an API key is needed");
  expect_refused({"--port", "70000"}, "outside [0, 65535]");
  expect_refused({"--max-request-mib", "0"}, "outside [1, 4096]");
  expect_refused({"--api-key-file", path("absent")}, "absent");
  base::write_text(path("empty-keys"), "\n");
  expect_refused({"--api-key-file", path("empty-keys")}, "holds no key");
}

TEST_F(ServeCommand, AModelThatDoesNotLoadEndsTheServer) {
  std::filesystem::create_directories(path("hollow"));
  Process process({"serve", path("hollow"), "--port", "0"}, path("out"), path("error"));
  EXPECT_EQ(process.wait_for_end(), 2);
  EXPECT_THAT(base::read_text(path("error"), 1 << 20), HasSubstr("not a Tandem artifact"));
}

}  // namespace
}  // namespace tandem
