// Sparse selection against the reference: which blocks are kept, and the logits that follow from them.
#include <gtest/gtest.h>

#include "tests/golden/support.h"

namespace tandem::golden {
namespace {

struct Case {
  std::string file;
  std::string model;
  int64_t budget;     // 0: the config's
  std::string layer;  // prefix of the selection tensors, empty where nothing is selected
  int64_t first_row;  // position of the first stored row of the selection
};

class Selection : public testing::TestWithParam<Case> {};

TEST_P(Selection, LogitsHiddenStatesAndSelectedBlocksAreTheReferences) {
  const Case& c = GetParam();
  model::LoadOptions options = reference_options();
  options.indexer_budget = c.budget;
  Loaded loaded(c.model, options);
  const Reference reference(c.file);
  const auto ids = reference.ints("input_ids");
  const auto tokens = static_cast<int64_t>(ids.size());
  context::Sequence sequence = loaded.sequence();
  model::ForwardRequest request;
  request.logits = reference.shape("logits")[0];
  request.hidden = true;
  request.selection = true;
  model::ForwardOutput output;
  sequence.forward(ids, request, output);
  EXPECT_LE(largest_difference(output.logits, reference.floats("logits")), 1e-3);
  const auto hidden = last_rows(output.hidden, loaded.model().config().layers, tokens, reference.shape("hidden")[1]);
  EXPECT_LE(relative_norm(hidden, reference.floats("hidden")), 1e-4);
  if (c.layer.empty()) return;

  const auto selected = reference.bytes(c.layer + ".selected_blocks");
  const auto gap = reference.floats(c.layer + ".select_gap");
  const int64_t rows = reference.shape(c.layer + ".selected_blocks")[0];
  const int64_t blocks = reference.shape(c.layer + ".selected_blocks")[1];
  ASSERT_EQ(output.selected_blocks.size(), 1u);
  int64_t too_close = 0;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t> want;
    for (int64_t b = 0; b < blocks; ++b) {
      if (selected[static_cast<size_t>(row * blocks + b)] != 0) want.push_back(static_cast<int32_t>(b));
    }
    const auto& got = output.selected_blocks[0][static_cast<size_t>(c.first_row + row)];
    // A border gap below the rounding error of a score, yet no tie, leaves the choice open.
    const float border = gap[static_cast<size_t>(row)];
    if (got != want && border > 0 && border < 2e-6F) {
      ++too_close;
      continue;
    }
    EXPECT_EQ(got, want) << "position " << c.first_row + row << ", gap " << border;
  }
  EXPECT_LE(too_close, 2);
}

INSTANTIATE_TEST_SUITE_P(Files, Selection,
                         testing::Values(Case{"qsa-random.safetensors", "qsa-random", 0, "layer2", 0},
                                         Case{"demo-flash-budget64.safetensors", "demo-flash", 64, "layer3", 0},
                                         Case{"long-flash.safetensors", "demo-flash", 0, "layer3", 2048},
                                         Case{"long-dense.safetensors", "demo-dense", 0, "", 0}),
                         [](const auto& item) {
                           std::string name = item.param.file.substr(0, item.param.file.find('.'));
                           std::erase(name, '-');
                           return name;
                         });

TEST(SelectionContrast, WithoutSparsityTheLogitsAreTheDenseOnes) {
  model::LoadOptions options = reference_options();
  options.indexer_budget = 400;
  Loaded loaded("qsa-random", options);
  const Reference reference("qsa-random.safetensors");
  context::Sequence sequence = loaded.sequence();
  model::ForwardRequest request;
  request.logits = 16;
  model::ForwardOutput output;
  sequence.forward(reference.ints("input_ids"), request, output);
  EXPECT_LE(largest_difference(output.logits, reference.floats("dense_logits")), 1e-3);
  EXPECT_GT(largest_difference(output.logits, reference.floats("logits")), 0.1);
}

TEST(LongContext, GreedyTokensAndDraftsAreTheReferencesBeyondTheBudget) {
  for (const std::string name : {"dense", "flash"}) {
    Loaded loaded("demo-" + name, reference_options());
    const Reference reference("long-" + name + ".safetensors");
    const auto ids = reference.ints("input_ids");
    const auto tokens = static_cast<int64_t>(ids.size());
    const int64_t vocab = loaded.model().config().vocab;
    context::Sequence sequence = loaded.sequence();
    model::ForwardRequest request;
    request.draft_hidden = true;
    model::ForwardOutput output;
    // In chunks, as the engine runs it.
    std::vector<float> hidden;
    for (int64_t t = 0; t < tokens; t += 512) {
      const auto count = static_cast<size_t>(std::min<int64_t>(512, tokens - t));
      sequence.forward(std::span(ids).subspan(static_cast<size_t>(t), count), request, output);
      hidden.insert(hidden.end(), output.draft_hidden.begin(), output.draft_hidden.end());
    }
    const auto drawn = reference.ints("mtp_tokens");
    std::vector<int32_t> next(ids.begin() + 1, ids.end());
    next.push_back(drawn[0]);
    model::Model::DraftOutput draft;
    sequence.draft({.first = 0, .next_tokens = next, .hidden = hidden, .logits = 2}, draft);
    EXPECT_LE(largest_difference(draft.logits, reference.floats("mtp_logits")), 1e-3) << name;
    const std::vector<float> own(draft.draft_hidden.end() - loaded.model().draft_width(), draft.draft_hidden.end());
    sequence.draft({.first = tokens, .next_tokens = std::span(&drawn[1], 1), .hidden = own, .logits = 1}, draft);
    EXPECT_LE(largest_difference(draft.logits, reference.floats("mtp_step2_logits")), 1e-3) << name;

    const auto want = reference.ints("greedy_ids");
    const auto gaps = reference.floats("greedy_gap");
    for (size_t i = 0; i < want.size(); ++i) {
      const int32_t token = argmax(output.logits.data() + output.logits.size() - vocab, vocab);
      if (token != want[i]) {
        EXPECT_LE(gaps[i], 0.02) << name << " step " << i;
        break;
      }
      if (token == 4065 || token == 4063) break;
      sequence.forward(std::span(&token, 1), {}, output);
    }
  }
}

}  // namespace
}  // namespace tandem::golden
