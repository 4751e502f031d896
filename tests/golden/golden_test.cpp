// Both demo models against the reference implementation, prompt by prompt.
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "tests/golden/support.h"

namespace tandem::golden {
namespace {

constexpr int32_t kEndOfText = 4063;
constexpr int32_t kEndOfTurn = 4065;
const std::vector<std::string> kPrompts = {"chat_short",  "chat_think", "tools_call", "tools_answer",
                                           "memory_long", "unicode",    "code",       "single_token"};

using Params = std::string;

class Golden : public testing::TestWithParam<Params> {
 protected:
  static Loaded& loaded(const std::string& name) {
    static Loaded dense("demo-dense", reference_options());
    static Loaded flash("demo-flash", reference_options());
    return name == "demo-dense" ? dense : flash;
  }
  Loaded& loaded() { return loaded(GetParam()); }
  const Reference reference_{GetParam() + ".safetensors"};
};

// The greedy continuation in single steps, compared up to the end token; a different token is allowed only where the
// reference's own gap is at most `gap`.
void expect_greedy(context::Sequence& sequence, std::vector<float> logits, const std::vector<int32_t>& want,
                   const std::vector<float>& gaps, double gap, const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const int32_t token = argmax(logits.data(), static_cast<int64_t>(logits.size()));
    if (token != want[i]) {
      EXPECT_LE(gaps[i], gap) << what << ": step " << i << " drew " << token << ", expected " << want[i];
      return;
    }
    if (token == kEndOfTurn || token == kEndOfText || i + 1 == want.size()) return;
    model::ForwardOutput output;
    sequence.forward(std::span(&token, 1), {}, output);
    logits = std::move(output.logits);
  }
}

TEST_P(Golden, LogitsHiddenStatesRoutesAndGreedyTokensAreTheReferences) {
  const model::Config& config = loaded().model().config();
  for (const std::string& prompt : kPrompts) {
    const auto ids = reference_.ints(prompt + ".input_ids");
    const auto logits = reference_.floats(prompt + ".logits");
    const auto hidden = reference_.floats(prompt + ".hidden");
    const int64_t rows = reference_.shape(prompt + ".hidden")[1];
    const auto tokens = static_cast<int64_t>(ids.size());
    context::Sequence sequence = loaded().sequence();
    model::ForwardRequest request;
    request.logits = reference_.shape(prompt + ".logits")[0];
    request.hidden = true;
    request.routing = true;
    model::ForwardOutput output;
    sequence.forward(ids, request, output);

    EXPECT_LE(largest_difference(output.logits, logits), 1e-3) << prompt;
    const auto got_hidden = last_rows(output.hidden, config.layers, tokens, rows);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const auto part = static_cast<int64_t>(hidden.size()) / config.layers;
      const std::vector<float> got(got_hidden.begin() + layer * part, got_hidden.begin() + (layer + 1) * part);
      const std::vector<float> want(hidden.begin() + layer * part, hidden.begin() + (layer + 1) * part);
      EXPECT_LE(relative_norm(got, want), 1e-4) << prompt << " layer " << layer;
    }
    if (config.moe()) {
      const std::vector<float> all_ids(output.router_ids.begin(), output.router_ids.end());
      const auto want_ids = reference_.ints(prompt + ".router_ids");
      EXPECT_EQ(last_rows(all_ids, config.layers, tokens, rows), std::vector<float>(want_ids.begin(), want_ids.end()));
      EXPECT_LE(largest_difference(last_rows(output.router_weights, config.layers, tokens, rows),
                                   reference_.floats(prompt + ".router_weights")),
                1e-4);
    }
    std::vector<float> last(output.logits.end() - config.vocab, output.logits.end());
    expect_greedy(sequence, std::move(last), reference_.ints(prompt + ".greedy_ids"),
                  reference_.floats(prompt + ".greedy_gap"), 0.02, prompt);
  }
}

TEST_P(Golden, DraftLogitsAreTheReferencesAlsoForAChainedStep) {
  for (const std::string& prompt : kPrompts) {
    const auto ids = reference_.ints(prompt + ".input_ids");
    const auto drawn = reference_.ints(prompt + ".mtp_tokens");
    const auto tokens = static_cast<int64_t>(ids.size());
    const int64_t width = loaded().model().draft_width();
    context::Sequence sequence = loaded().sequence();
    model::ForwardRequest request;
    request.draft_hidden = true;
    model::ForwardOutput output;
    sequence.forward(ids, request, output);
    EXPECT_EQ(argmax(output.logits.data(), loaded().model().config().vocab), drawn[0]) << prompt;

    std::vector<int32_t> next(ids.begin() + 1, ids.end());
    next.push_back(drawn[0]);
    model::Model::DraftOutput draft;
    sequence.draft({.first = 0,
                    .next_tokens = next,
                    .hidden = output.draft_hidden,
                    .logits = reference_.shape(prompt + ".mtp_logits")[0]},
                   draft);
    EXPECT_LE(largest_difference(draft.logits, reference_.floats(prompt + ".mtp_logits")), 1e-3) << prompt;
    const std::vector<float> own(draft.draft_hidden.end() - width, draft.draft_hidden.end());
    sequence.draft({.first = tokens, .next_tokens = std::span(&drawn[1], 1), .hidden = own, .logits = 1}, draft);
    EXPECT_LE(largest_difference(draft.logits, reference_.floats(prompt + ".mtp_step2_logits")), 1e-3) << prompt;
  }
}

TEST_P(Golden, AnySplitOfTheTokensGivesTheSameLogits) {
  std::mt19937 random(std::random_device{}());
  for (const std::string prompt : {"tools_call", "unicode"}) {
    const auto ids = reference_.ints(prompt + ".input_ids");
    const auto tokens = static_cast<int64_t>(ids.size());
    model::ForwardRequest request;
    request.draft_hidden = true;
    const auto run = [&](int64_t most) {
      context::Sequence sequence = loaded().sequence();
      model::ForwardOutput output;
      std::vector<float> hidden;
      for (int64_t t = 0; t < tokens;) {
        const int64_t count = most == 0 ? tokens : std::min(tokens - t, 1 + static_cast<int64_t>(random() % most));
        sequence.forward(std::span(ids).subspan(static_cast<size_t>(t), static_cast<size_t>(count)), request, output);
        hidden.insert(hidden.end(), output.draft_hidden.begin(), output.draft_hidden.end());
        t += count;
      }
      // The draft head's own cache is split elsewhere than the target's.
      std::vector<int32_t> next(ids.begin() + 1, ids.end());
      next.push_back(0);
      model::Model::DraftOutput draft;
      const auto width = static_cast<int64_t>(hidden.size()) / tokens;
      for (int64_t t = 0; t < tokens;) {
        const int64_t count = most == 0 ? tokens : std::min(tokens - t, 1 + static_cast<int64_t>(random() % most));
        sequence.draft(
            {.first = t,
             .next_tokens = std::span(next).subspan(static_cast<size_t>(t), static_cast<size_t>(count)),
             .hidden = std::span(hidden).subspan(static_cast<size_t>(t * width), static_cast<size_t>(count * width)),
             .logits = 1},
            draft);
        t += count;
      }
      output.logits.insert(output.logits.end(), draft.logits.begin(), draft.logits.end());
      return output.logits;
    };
    const auto whole = run(0);
    for (const int64_t most : {1, 7, 100})
      EXPECT_LE(relative_norm(run(most), whole), 1e-4) << prompt << " up to " << most;
  }
}

TEST_P(Golden, ACopiedSequenceGoesOnLikeItsOriginal) {
  const auto ids = reference_.ints("tools_answer.input_ids");
  context::Sequence sequence = loaded().sequence();
  model::ForwardOutput output;
  sequence.forward(std::span(ids).first(100), {}, output);
  context::Sequence copy = sequence.copy();
  sequence.forward(std::span(ids).subspan(100), {}, output);
  const auto want = output.logits;
  copy.forward(std::span(ids).subspan(100), {}, output);
  EXPECT_EQ(output.logits, want);
}

INSTANTIATE_TEST_SUITE_P(Demos, Golden, testing::Values("demo-dense", "demo-flash"),
                         [](const auto& item) { return item.param == "demo-dense" ? "Dense" : "Flash"; });

TEST(GoldenW4A4, LogitsAreNearTheReferencesAndTheGreedyTextIsTheSame) {
  model::LoadOptions options = reference_options();
  options.expert_mode = model::ExpertMode::kW4A4;
  Loaded loaded("demo-flash", options);
  const Reference reference("demo-flash.safetensors");
  for (const std::string& prompt : kPrompts) {
    const auto ids = reference.ints(prompt + ".input_ids");
    context::Sequence sequence = loaded.sequence();
    model::ForwardRequest request;
    request.logits = reference.shape(prompt + ".w4a4_logits")[0];
    model::ForwardOutput output;
    sequence.forward(ids, request, output);
    EXPECT_LE(relative_norm(output.logits, reference.floats(prompt + ".w4a4_logits")), 2e-2) << prompt;
    std::vector<float> last(output.logits.end() - loaded.model().config().vocab, output.logits.end());
    expect_greedy(sequence, std::move(last), reference.ints(prompt + ".w4a4_greedy_ids"),
                  reference.floats(prompt + ".w4a4_greedy_gap"), 0.02, prompt);
  }
}

// The draft head's error with quantised experts, on hidden states of the exact target: the largest relative norm of the
// logits' difference over the prompts. `hidden` by prompt.
double draft_error(const artifact::Artifact& artifact, model::ExpertMode mode,
                   const std::map<std::string, std::vector<float>>& hidden) {
  model::LoadOptions options = reference_options();
  options.expert_mode = mode;
  Loaded loaded(artifact, options);
  const Reference reference("demo-flash.safetensors");
  double worst = 0;
  for (const std::string& prompt : kPrompts) {
    const auto ids = reference.ints(prompt + ".input_ids");
    std::vector<int32_t> next(ids.begin() + 1, ids.end());
    next.push_back(reference.ints(prompt + ".mtp_tokens")[0]);
    context::Sequence sequence = loaded.sequence();
    model::ForwardOutput output;
    sequence.forward(ids, {}, output);
    model::Model::DraftOutput draft;
    const int64_t logits = reference.shape(prompt + ".mtp_logits")[0];
    sequence.draft({.first = 0, .next_tokens = next, .hidden = hidden.at(prompt), .logits = logits}, draft);
    worst = std::max(worst, relative_norm(draft.logits, reference.floats(prompt + ".mtp_logits")));
  }
  return worst;
}

// Measured: see docs/testing.md; the bounds leave a factor of two.
TEST(GoldenDraft, QuantisedExpertsStayWithinTheStatedTolerance) {
  std::map<std::string, std::vector<float>> hidden;
  Loaded exact("demo-flash", reference_options());
  for (const std::string& prompt : kPrompts) {
    context::Sequence sequence = exact.sequence();
    model::ForwardRequest request;
    request.draft_hidden = true;
    model::ForwardOutput output;
    sequence.forward(Reference("demo-flash.safetensors").ints(prompt + ".input_ids"), request, output);
    hidden[prompt] = std::move(output.draft_hidden);
  }
  const artifact::Artifact& fp8 = demo_artifact("demo-flash");
  const artifact::Artifact& nvfp4 = demo_artifact("demo-flash", convert::MtpExperts::kNvfp4);
  const double int8 = draft_error(fp8, model::ExpertMode::kW4A4, hidden);
  const double weights = draft_error(nvfp4, model::ExpertMode::kW4A16, hidden);
  const double both = draft_error(nvfp4, model::ExpertMode::kW4A4, hidden);
  std::printf("draft logits: FP8 with 8-bit activations %.5f, NVFP4 %.5f, NVFP4 with 4-bit activations %.5f\n", int8,
              weights, both);
  EXPECT_LE(int8, 0.02);
  EXPECT_LE(weights, 0.1);
  EXPECT_LE(both, 0.17);
}

// Activations in BF16 are what users run. Measured largest relative norm of the logits' difference over the prompts:
// see docs/testing.md; the bound leaves a factor of two.
TEST(GoldenBf16, LogitsStayWithinTheStatedTolerance) {
  for (const std::string name : {"demo-dense", "demo-flash"}) {
    model::LoadOptions options = reference_options();
    options.activations = model::Activations::kBF16;
    Loaded loaded(name, options);
    const Reference reference(name + ".safetensors");
    double worst = 0;
    for (const std::string& prompt : kPrompts) {
      const auto ids = reference.ints(prompt + ".input_ids");
      context::Sequence sequence = loaded.sequence();
      model::ForwardRequest request;
      request.logits = reference.shape(prompt + ".logits")[0];
      model::ForwardOutput output;
      sequence.forward(ids, request, output);
      worst = std::max(worst, relative_norm(output.logits, reference.floats(prompt + ".logits")));
      std::vector<float> last(output.logits.end() - loaded.model().config().vocab, output.logits.end());
      expect_greedy(sequence, std::move(last), reference.ints(prompt + ".greedy_ids"),
                    reference.floats(prompt + ".greedy_gap"), 0.2, prompt);
    }
    RecordProperty(name, std::to_string(worst));
    std::printf("%s: largest relative norm of the logits' difference with BF16 activations %.5f\n", name.c_str(),
                worst);
    EXPECT_LE(worst, 1e-2) << name;
  }
}

// The third family has no demo; a tiny checkpoint with random weights (recipe/make_moe_random.py) stands for it.
TEST(GoldenMoe, LogitsHiddenStatesAndRoutesAreTheReferences) {
  Loaded loaded("moe-random", reference_options());
  const Reference reference("moe-random.safetensors");
  const auto ids = reference.ints("input_ids");
  const int64_t layers = loaded.model().config().layers;
  const auto tokens = static_cast<int64_t>(ids.size());
  context::Sequence sequence = loaded.sequence();
  model::ForwardRequest request;
  request.logits = reference.shape("logits")[0];
  request.hidden = true;
  request.routing = true;
  model::ForwardOutput output;
  sequence.forward(ids, request, output);
  const int64_t rows = reference.shape("hidden")[1];
  EXPECT_LE(largest_difference(output.logits, reference.floats("logits")), 1e-3);
  EXPECT_LE(relative_norm(last_rows(output.hidden, layers, tokens, rows), reference.floats("hidden")), 1e-4);
  const std::vector<float> routes(output.router_ids.begin(), output.router_ids.end());
  const auto want = reference.ints("router_ids");
  EXPECT_EQ(last_rows(routes, layers, tokens, rows), std::vector<float>(want.begin(), want.end()));
  EXPECT_LE(
      largest_difference(last_rows(output.router_weights, layers, tokens, rows), reference.floats("router_weights")),
      1e-4);
}

}  // namespace
}  // namespace tandem::golden
