// The built binary: every kind of bad input ends in one line, exit code 2 and no output.
#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/file.h"
#include "tandem_runner.h"

namespace tandem {
namespace {

using testing::Result;

class CommandLine : public ::testing::Test {
 protected:
  Result tandem(const std::vector<std::string>& arguments, const std::string& environment = "") const {
    return runner_.run(arguments, environment);
  }
  std::string path(const std::string& name) const { return runner_.path(name); }
  std::string file(const std::string& name, const std::string& text) const { return runner_.file(name, text); }

  // One line on standard error that holds `part`, exit code 2, nothing on standard output.
  void expect_refused(const Result& result, const std::string& part) {
    EXPECT_EQ(result.code, 2) << result.error;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
    EXPECT_TRUE(result.error.starts_with("tandem: ")) << result.error;
    EXPECT_NE(result.error.find(part), std::string::npos) << result.error;
  }

  testing::TandemRunner runner_{"tandem-cli"};
};

TEST_F(CommandLine, HelpAndVersionAreAnswers) {
  const auto help = tandem({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"run", "chat", "score", "bench", "Examples", "--config"}) {
    EXPECT_NE(help.out.find(word), std::string::npos) << word;
  }
  const auto run = tandem({"run", "--help"});
  EXPECT_EQ(run.code, 0);
  for (const char* word : {"--temperature", "TANDEM_TEMPERATURE", "--device", "Examples"}) {
    EXPECT_NE(run.out.find(word), std::string::npos) << word;
  }
  EXPECT_TRUE(tandem({"--version"}).out.starts_with("tandem "));
}

TEST_F(CommandLine, TheSettingsPageIsWhatTheTablePrints) {
  const auto table = tandem({"options", "--markdown"});
  EXPECT_EQ(table.code, 0);
  EXPECT_EQ(table.out, base::read_text(std::filesystem::path(TANDEM_SOURCE_DIR) / "docs/options.md", 1 << 20))
      << "renew it: tandem options --markdown > docs/options.md";
}

TEST_F(CommandLine, WordsThatItDoesNotKnowAreRefused) {
  expect_refused(tandem({}), "A subcommand is required (tandem --help tells how)");
  expect_refused(tandem({"fly"}), "there is no command 'fly'");
  expect_refused(tandem({"run", "m.tandem", "hi", "--fast"}), "--fast");
  expect_refused(tandem({"run", "m.tandem", "hi", "--temperature", "hot"}), "--temperature");
  expect_refused(tandem({"run", "m.tandem", "hi", "--activations", "f16"}), "'f16' is none of f32|bf16");
  expect_refused(tandem({"run", "m.tandem", "hi", "--isa", "sse"}), "'sse' is none of auto|avx2|avx512|avx512vbmi");
  expect_refused(tandem({"run", "m.tandem", "hi", "--threads"}), "--threads");
  expect_refused(tandem({"run"}), "model");
  expect_refused(tandem({"bench"}), "subcommand is required");
  expect_refused(tandem({"run", "m.tandem", "hi", "--log-level", "loud"}), "loud");
}

TEST_F(CommandLine, AModelThatIsNoArtifactIsRefused) {
  expect_refused(tandem({"run", path("absent.tandem"), "hi"}), "absent.tandem");
  std::filesystem::create_directories(path("empty.tandem"));
  expect_refused(tandem({"run", path("empty.tandem"), "hi"}), "empty.tandem");
  expect_refused(tandem({"chat", file("text.tandem", "hello")}), "text.tandem");
}

TEST_F(CommandLine, DevicesThatThisVersionLacksAreNamed) {
  for (const char* command : {"run", "score", "bench"}) {
    std::vector<std::string> arguments = {command, "m.tandem"};
    if (std::string(command) == "run") arguments.insert(arguments.end(), {"hi"});
    if (std::string(command) == "score") {
      arguments.insert(arguments.end(), {"--ids", file("ids.json", "[1]"), "--out", path("out.safetensors")});
    }
    if (std::string(command) == "bench") arguments.insert(arguments.begin() + 1, "host");
    const auto with = [&](std::initializer_list<std::string> options) {
      auto all = arguments;
      all.insert(all.end(), options);
      return tandem(all);
    };
    expect_refused(with({"--device", "cuda:63"}), "cuda:63");
    expect_refused(with({"--device", "sim,sim", "--ranks", "2"}), "has no simulated device");
    expect_refused(with({"--ranks", "2"}), "on one rank, not on 2");
    expect_refused(with({"--device", "tpu"}), "'tpu' is none of cpu, sim[,sim] and cuda:N[,N]");
  }
  EXPECT_FALSE(std::filesystem::exists(path("out.safetensors")));
}

TEST_F(CommandLine, TheCommandLineBeatsTheEnvironmentAndThatTheFile) {
  const auto config = file("settings.toml", "device = \"cuda:61\"\n");
  const auto run = [&](std::vector<std::string> more, const std::string& environment) {
    std::vector<std::string> arguments = {"run", "m.tandem", "hi", "--config", config};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return tandem(arguments, environment);
  };
  expect_refused(run({}, ""), "cuda:61: ");
  expect_refused(run({}, "TANDEM_DEVICE=cuda:62"), "cuda:62: ");
  expect_refused(run({"--device", "cuda:63"}, "TANDEM_DEVICE=cuda:62"), "cuda:63: ");
  expect_refused(tandem({"run", "m.tandem", "hi"}, "TANDEM_CONFIG=" + config), "cuda:61: ");
}

TEST_F(CommandLine, SectionsOfTheFileBelongToOneCommand) {
  const auto config = file("settings.toml", "[run]\ndevice = \"cuda:61\"\n[score]\ndevice = \"cuda:62\"\n");
  expect_refused(tandem({"run", "m.tandem", "hi", "--config", config}), "cuda:61: ");
  expect_refused(tandem({"--config", config, "chat", "absent.tandem"}), "absent.tandem");
  expect_refused(
      tandem({"score", "m.tandem", "--ids", file("ids.json", "[1]"), "--out", path("o"), "--config", config}),
      "cuda:62: ");
}

TEST_F(CommandLine, AFileMayHoldSettingsOfOtherCommands) {
  const auto config = file("settings.toml", "temperature = 0.5\nmax-context = 100\ndevice = \"cuda:61\"\n");
  expect_refused(tandem({"score", "m", "--ids", file("ids.json", "[1]"), "--out", path("o"), "--config", config}),
                 "cuda:61: ");
}

TEST_F(CommandLine, BadFilesAndEnvironmentsAreRefused) {
  const auto with = [&](const std::string& text) {
    return tandem({"run", "m.tandem", "hi", "--config", file("settings.toml", text)});
  };
  expect_refused(with("devise = \"cpu\"\n"), "there is no setting 'devise'");
  expect_refused(with("[fly]\ndevice = \"cpu\"\n"), "there is no command 'fly'");
  expect_refused(with("threads = many\n"), "--threads");
  expect_refused(with("prompt = hello\n"), "there is no setting 'prompt'");
  expect_refused(tandem({"run", "m.tandem", "hi", "--config", path("absent.toml")}), "absent.toml");
  expect_refused(tandem({"run", "m.tandem", "hi"}, "TANDEM_THREADS=many"), "--threads");
  expect_refused(tandem({"run", "m.tandem", "hi"}, "TANDEM_EXPERT_MODE=w8"), "'w8' is none of w4a16|w4a4");
}

TEST_F(CommandLine, TokenFilesAreChecked) {
  const auto score = [&](const std::string& ids) {
    return tandem({"score", "m.tandem", "--ids", file("ids.json", ids), "--out", path("out.safetensors")});
  };
  expect_refused(score("[1, 2"), "ids.json");
  expect_refused(score("{}"), "is not a JSON array of token ids");
  expect_refused(score("[]"), "holds no token ids");
  expect_refused(score("[1, -2]"), "element 1 is -2, which is no token id");
  expect_refused(score("[1, 2.5]"), "element 1 is 2.5");
  expect_refused(score("[4294967296]"), "element 0 is 4294967296");
  expect_refused(tandem({"score", "m.tandem", "--ids", path("absent.json"), "--out", path("out.safetensors")}),
                 "absent.json");
  EXPECT_FALSE(std::filesystem::exists(path("out.safetensors")));
}

TEST_F(CommandLine, OptionsThatContradictEachOtherAreRefused) {
  expect_refused(tandem({"run", "m.tandem"}), "either a prompt or --ids");
  expect_refused(tandem({"run", "m.tandem", "hi", "--ids", "x"}), "either a prompt or --ids");
  expect_refused(tandem({"run", "m.tandem", "hi", "--raw", "--system", "x"}), "--system");
  expect_refused(tandem({"bench", "host", "m.tandem", "--rounds", "2"}), "2 is below 5");
  expect_refused(tandem({"score", "m", "--ids", "x", "--out", "y", "--last", "0"}), "--last: 0 is below 1");
}

}  // namespace
}  // namespace tandem
