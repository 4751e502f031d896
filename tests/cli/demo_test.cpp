// The commands on the demo models, converted here: what users see agrees with the reference.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "tandem_runner.h"

namespace tandem {
namespace {

const std::filesystem::path kSource = TANDEM_SOURCE_DIR;

template <typename T>
std::vector<T> values(const checkpoint::Checkpoint& file, const std::string& name) {
  const auto bytes = file.read(file.at(name));
  std::vector<T> result(bytes.size() / sizeof(T));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

class Demo : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    runner_ = std::make_unique<testing::TandemRunner>("tandem-cli-demo");
    for (const char* name : {"demo-flash", "demo-dense"}) {
      const auto result = runner_->run({"convert", (kSource / "models" / name).string(), "-o", artifact(name)});
      ASSERT_EQ(result.code, 0) << result.error;
    }
  }
  static void TearDownTestSuite() { runner_.reset(); }

  static std::string artifact(const std::string& name) { return runner_->path(name + ".tandem"); }
  static testing::Result tandem(const std::vector<std::string>& arguments, const std::string& input = "") {
    return runner_->run(arguments, "", input);
  }

  static std::unique_ptr<testing::TandemRunner> runner_;
};

std::unique_ptr<testing::TandemRunner> Demo::runner_;

TEST_P(Demo, RunAnswersGreedilyAsTheReferenceDoes) {
  const auto result =
      tandem({"run", artifact(GetParam()), "Hello, who are you?", "--no-thinking", "--temperature", "0"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out,
            "I am Demo, a small language model made for testing an inference engine. I can answer short questions, do "
            "small sums, call tools and tell little stories.\n");
}

TEST_P(Demo, RunJsonIsOneObjectWithTheReasoningApart) {
  const auto result = tandem({"run", artifact(GetParam()), "What is 27 + 58?", "--temperature", "0", "--json"});
  const auto json = base::parse_json(result.out, "stdout");
  EXPECT_EQ(json["text"], "27 + 58 = 85.");
  EXPECT_EQ(json["reasoning"], "Tens: 20 + 50 = 70. Ones: 7 + 8 = 15. Together 70 + 15 = 85.");
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["prompt_tokens"], 60);
}

TEST_P(Demo, TheSameSeedGivesTheSameAnswer) {
  const auto answer = [&](const char* seed) {
    return tandem({"run", artifact(GetParam()), "Tell me a story.", "--no-thinking", "--temperature", "1.5", "--top-k",
                   "0", "--top-p", "1", "--max-tokens", "40", "--seed", seed})
        .out;
  };
  EXPECT_EQ(answer("1"), answer("1"));
  EXPECT_NE(answer("1"), answer("2"));
}

TEST_P(Demo, RunContinuesGivenTokens) {
  const auto golden = checkpoint::Checkpoint::open(std::filesystem::path(TANDEM_GOLDEN_DIR) /
                                                   (std::string(GetParam()) + ".safetensors"));
  const auto ids = values<int32_t>(golden, "chat_short.input_ids");
  const auto greedy = values<int32_t>(golden, "chat_short.greedy_ids");
  const auto result = tandem({"run", artifact(GetParam()), "--ids", runner_->file("ids.json", base::Json(ids).dump()),
                              "--temperature", "0", "--max-tokens", "10", "--json"});
  const auto json = base::parse_json(result.out, "stdout");
  EXPECT_EQ(json["token_ids"].get<std::vector<int32_t>>(), std::vector<int32_t>(greedy.begin(), greedy.begin() + 10));
  EXPECT_EQ(json["finish_reason"], "length");
}

TEST_P(Demo, ChatRemembersUntilReset) {
  const auto result = tandem({"chat", artifact(GetParam()), "--no-thinking", "--temperature", "0"},
                             "My name is Ada.\nWhat is my name?\n/exit\nnever read\n");
  EXPECT_EQ(result.code, 0);
  EXPECT_TRUE(result.out.ends_with("Your name is Ada.\n")) << result.out;
  const auto reset = tandem({"chat", artifact(GetParam()), "--no-thinking", "--temperature", "0"},
                            "My name is Ada.\n/reset\nWhat is my name?\n");
  EXPECT_FALSE(reset.out.ends_with("Your name is Ada.\n")) << reset.out;
}

TEST_P(Demo, ScoreWritesWhatTheReferenceHolds) {
  const auto golden = checkpoint::Checkpoint::open(std::filesystem::path(TANDEM_GOLDEN_DIR) /
                                                   (std::string(GetParam()) + ".safetensors"));
  const auto ids = runner_->file("ids.json", base::Json(values<int32_t>(golden, "chat_short.input_ids")).dump());
  const auto score = [&](const std::string& last, const std::string& chunk) {
    const std::string out = runner_->path("scores.safetensors");
    const auto result = tandem({"score", artifact(GetParam()), "--ids", ids, "--out", out, "--last", last, "--chunk",
                                chunk, "--hidden", "--routing", "--activations", "f32", "--expert-mode", "w4a16"});
    EXPECT_EQ(result.code, 0) << result.error;
    return checkpoint::Checkpoint::open(out);
  };
  for (const char* chunk : {"512", "5"}) {
    const auto logits = score("8", chunk);
    EXPECT_EQ(logits.at("logits").shape, (std::vector<int64_t>{8, 4096}));
    EXPECT_LT(largest_difference(values<float>(logits, "logits"), values<float>(golden, "chat_short.logits")), 1e-3);
    const auto states = score("4", chunk);
    EXPECT_EQ(states.at("hidden").shape, golden.at("chat_short.hidden").shape);
    EXPECT_LT(largest_difference(values<float>(states, "hidden"), values<float>(golden, "chat_short.hidden")), 1e-2);
    if (golden.find("chat_short.router_ids") == nullptr) continue;
    EXPECT_EQ(values<int32_t>(states, "router_ids"), values<int32_t>(golden, "chat_short.router_ids"));
    EXPECT_LT(
        largest_difference(values<float>(states, "router_weights"), values<float>(golden, "chat_short.router_weights")),
        1e-4);
    // 18 tokens hold 4 complete blocks of 4, all within the budget: each position selects those before its own.
    EXPECT_EQ(states.at("selected_blocks").shape, (std::vector<int64_t>{1, 4, 4}));
  }
}

TEST_P(Demo, EveryIsaGivesTheSameBits) {
  const auto ids = runner_->file("ids.json", "[4064, 198, 9, 27, 300, 41, 7, 5]");
  const auto score = [&](const std::string& isa) {
    return tandem(
        {"score", artifact(GetParam()), "--ids", ids, "--out", runner_->path(isa), "--last", "8", "--isa", isa});
  };
  ASSERT_EQ(score("auto").code, 0);
  const std::string best = base::read_text(runner_->path("auto"), 1 << 24);
  for (const char* isa : {"avx2", "avx512", "avx512vbmi"}) {
    const auto result = score(isa);
    if (result.code == 2) {  // this processor lacks it
      EXPECT_TRUE(result.error.starts_with("tandem: processor: ")) << result.error;
      EXPECT_NE(result.error.find(" lacks AVX"), std::string::npos) << result.error;
      continue;
    }
    ASSERT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(base::read_text(runner_->path(isa), 1 << 24), best) << isa;
  }
}

TEST_P(Demo, TooLongAPromptIsRefusedWithBothFigures) {
  const auto result =
      tandem({"run", artifact(GetParam()), "Hello, who are you?", "--no-thinking", "--max-context", "18"});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.error, "tandem: prompt is too long: 18 tokens > 17 maximum\n");
}

TEST_P(Demo, TokensOutsideTheVocabularyAreRefused) {
  const auto ids = runner_->file("ids.json", "[1, 5000]");
  const auto run = tandem({"run", artifact(GetParam()), "--ids", ids});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.error.find("token id 5000 is outside [0, "), std::string::npos) << run.error;
  const auto score = tandem({"score", artifact(GetParam()), "--ids", ids, "--out", runner_->path("none.safetensors")});
  EXPECT_EQ(score.code, 2);
  EXPECT_NE(score.error.find("element 1 is 5000, the model's vocabulary has 4096 tokens"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(runner_->path("none.safetensors")));
}

INSTANTIATE_TEST_SUITE_P(Models, Demo, ::testing::Values("demo-flash", "demo-dense"),
                         [](const auto& model) { return std::string(model.param).substr(5); });

}  // namespace
}  // namespace tandem
