#include "context/sequence.h"

#include <gmock/gmock.h>
#include <optional>

#include "base/error.h"

namespace tandem::context {
namespace {

// Writes each token at its place in the page and sums the tokens in the slot, as real state does.
class RecordingModel final : public model::Model {
 public:
  RecordingModel() {
    layout_.page_bytes = model::kPageTokens * 4;
    layout_.slot_bytes = 64;
  }
  const model::Config& config() const override { return config_; }
  const model::StateLayout& state_layout() const override { return layout_; }
  int64_t weight_bytes() const override { return 0; }
  void reserve(int64_t) override {}
  void forget_recordings() override {}
  void prefetch(const model::SequenceView&, std::span<const int32_t>) override {}
  experts::NgramCounters ngram_counters() const override { return {}; }
  bool has_draft_head() const override { return false; }
  int64_t draft_width() const override { return 0; }
  std::vector<int32_t> greedy(int64_t, std::span<const std::span<const uint64_t>>) override { return {}; }
  std::vector<TopLogits> top_logits(int64_t, std::span<const std::span<const uint64_t>>) override { return {}; }
  std::span<const float> read_logits() override { return {}; }
  void settle() override {}
  void draft(const model::SequenceView&, const DraftRequest&, DraftOutput&) override {}

  device::Device& device() const override { return device::host(); }
  void forward(std::span<const model::Part> parts, const model::ForwardRequest&,
               model::ForwardOutput& output) override {
    const auto& [view, tokens] = parts[0];
    auto* sum = reinterpret_cast<int64_t*>(view.slot);
    int64_t position = view.length;
    for (const int32_t token : tokens) {
      *at(view, position++) = token;
      *sum += token;
    }
    output = {};
    output.logits.push_back(static_cast<float>(*sum));
    for (int64_t p = 0; p < position; ++p) output.logits.push_back(static_cast<float>(*at(view, p)));
  }

 private:
  int32_t* at(const model::SequenceView& view, int64_t position) const {
    const int32_t page = view.block_table[position / model::kPageTokens];
    return reinterpret_cast<int32_t*>(view.pages + page * layout_.page_bytes) + position % model::kPageTokens;
  }
  model::Config config_;
  model::StateLayout layout_;
};

class SequenceTest : public testing::Test {
 protected:
  // Consumes tokens first, first + 1, …; returns the slot's sum and all tokens in the pages.
  static std::vector<float> run(Sequence& sequence, int32_t first, int32_t count) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
    model::ForwardOutput output;
    sequence.forward(tokens, {}, output);
    return output.logits;
  }
  static std::vector<float> expected(int32_t first, int32_t count) {
    const int32_t sum = (2 * first + count - 1) * count / 2;
    std::vector<float> out = {static_cast<float>(sum)};
    for (int32_t i = 0; i < count; ++i) out.push_back(static_cast<float>(first + i));
    return out;
  }
  RecordingModel model_;
};

TEST_F(SequenceTest, SequencesShareThePagesAndKeepTheirOwnState) {
  SequencePool pool(model_, 64 * 6, 2);
  Sequence a = pool.create();
  Sequence b = pool.create();
  for (int32_t i = 0; i < 3; ++i) {
    run(a, 1 + i * 50, 50);
    run(b, 1000 + i * 40, 40);
  }
  EXPECT_EQ(run(a, 151, 1), expected(1, 151));
  EXPECT_EQ(run(b, 1120, 1), expected(1000, 121));
  EXPECT_EQ(pool.free_tokens(), 64);
}

TEST_F(SequenceTest, ANewSequenceStartsFromAnEmptySlot) {
  SequencePool pool(model_, 128, 1);
  {
    Sequence first = pool.create();
    run(first, 5, 70);
  }
  EXPECT_EQ(pool.free_tokens(), 128);
  Sequence second = pool.create();
  EXPECT_EQ(run(second, 1, 3), expected(1, 3));
}

TEST_F(SequenceTest, TooFewPagesAreToldWithTheFiguresAndChangeNothing) {
  SequencePool pool(model_, 128, 2);
  Sequence sequence = pool.create();
  run(sequence, 1, 100);
  try {
    run(sequence, 101, 29);
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kUnavailable);
    EXPECT_THAT(error.what(), testing::HasSubstr("129 tokens need 1 more pages"));
  }
  EXPECT_EQ(sequence.length(), 100);
  EXPECT_EQ(run(sequence, 101, 28), expected(1, 128));
}

TEST_F(SequenceTest, TooFewSlotsAreRefused) {
  SequencePool pool(model_, 128, 1);
  std::optional<Sequence> only = pool.create();
  EXPECT_THROW((void)pool.create(), base::Error);
  only.reset();
  EXPECT_NO_THROW((void)pool.create());
}

TEST_F(SequenceTest, ACopyHasPagesAndASlotOfItsOwn) {
  SequencePool pool(model_, 64 * 6, 2);
  Sequence original = pool.create();
  run(original, 1, 100);
  Sequence copy = original.copy();
  run(original, 500, 10);
  EXPECT_EQ(run(copy, 101, 20), expected(1, 120));
}

TEST_F(SequenceTest, MovingASequenceMovesItsState) {
  SequencePool pool(model_, 128, 2);
  Sequence a = pool.create();
  run(a, 1, 10);
  Sequence b = std::move(a);
  EXPECT_EQ(run(b, 11, 10), expected(1, 20));
  Sequence c = pool.create();
  c = std::move(b);
  EXPECT_EQ(run(c, 21, 1), expected(1, 21));
}

}  // namespace
}  // namespace tandem::context
