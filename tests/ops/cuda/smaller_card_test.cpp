// Blocks for cards whose multiprocessors have less shared memory, run here on whatever card there is: they must give
// what the larger blocks give.
#include <gtest/gtest.h>
#include <numeric>

#include "ops/cuda/attention.h"
#include "ops/cuda/delta_net.h"
#include "ops/cuda/dense_measure.h"
#include "ops/cuda/experts.h"
#include "tests/ops/cuda/experts_data.h"
#include "tests/ops/cuda/skip_without_card.h"
#include "tests/ops/cuda/state_card.h"

namespace tandem::ops::cuda {
namespace {

constexpr uint32_t kSmallNumbers = 0xbfbfbfbf;  // without their highest exponent bit
constexpr uint32_t kSmallPositive = 0x3fbfbfbf;

class CudaSmallerCard : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_A_CARD();
    card_ = std::make_unique<StateCard>();
    smaller_ = std::make_unique<Context>(card_->context);
    smaller_->capability = 120;
    smaller_->multiprocessors = 70;
  }
  device::Buffer random(int64_t bytes, uint32_t seed, uint32_t mask = kSmallNumbers) {
    device::Buffer buffer(*card_->device, (bytes + 255) / 256 * 256);
    fill_random(card_->context, buffer.data(), buffer.bytes(), seed, mask);
    return buffer;
  }
  std::vector<uint32_t> words(const device::Buffer& buffer) {
    std::vector<uint32_t> out(static_cast<size_t>(buffer.bytes()) / 4);
    card_->device->download(out.data(), buffer.data(), buffer.bytes());
    return out;
  }
  // The words of `result` after the operation as this card computes it, and as a smaller one does.
  template <typename Operation>
  void compare(device::Buffer& result, const Operation& operation) {
    card_->device->zero(result.data(), result.bytes());
    operation(card_->context);
    const auto here = words(result);
    card_->device->zero(result.data(), result.bytes());
    operation(*smaller_);
    EXPECT_EQ(words(result), here);
    EXPECT_NE(here, std::vector<uint32_t>(here.size())) << "nothing was computed";
  }

  std::unique_ptr<StateCard> card_;
  std::unique_ptr<Context> smaller_;
};

TEST_F(CudaSmallerCard, ExpertsOfFewColumnsHaveTheSameBits) {
  constexpr int64_t kExperts = 48;
  constexpr int64_t kInner = 640;
  constexpr int64_t kHidden = 2560;
  constexpr int64_t kTopK = 10;
  ExpertTable table;
  table.experts = kExperts;
  table.inner = kInner;
  table.hidden = kHidden;
  table.place({ExpertFormat::kNvfp4, ExpertFormat::kNvfp4, ExpertFormat::kNvfp4});
  std::mt19937 engine(1);
  Array<std::byte> records(*card_, RandomRecords(engine, false).make(table.record, kExperts, kInner, kHidden));
  Array<float> scalars(*card_, random_scalars(engine, kExperts, 6));
  const auto x = random(kMostFewColumns * kHidden * 4, 3);
  const auto weights = random(kMostFewColumns * kTopK * 4, 4, kSmallPositive);
  table.records = records.data();
  table.scalars = scalars.data();
  std::vector<int32_t> chosen(kMostFewColumns * kTopK);
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = static_cast<int32_t>(i * 7 % kExperts);
  Array<int32_t> ids(*card_, chosen);
  device::Buffer faults(*card_->device, kMostFewColumns * 4, true);
  for (const int64_t tokens : {1, 2, 3, 8}) {
    device::Buffer sums(*card_->device, 2 * tokens * kHidden * 4);
    compare(sums, [&](const Context& context) {
      Ops::Experts args;
      args.x = x.as<float>();
      args.tokens = tokens;
      args.top_k = kTopK;
      args.ids = ids.data();
      args.weights = weights.as<float>();
      args.table = table;
      args.quantise_activations = true;
      args.lower = sums.as<float>();
      args.upper = sums.as<float>() + tokens * kHidden;
      args.faults = faults.as<int32_t>();
      experts(context, args);
    });
  }
}

TEST_F(CudaSmallerCard, PromptsAttendWithTheSameBits) {
  constexpr int64_t kTokens = 200;
  constexpr int64_t kPosition = 300;
  constexpr int64_t kHeads = 24;
  constexpr int64_t kDim = 256;
  constexpr int64_t kPages = 8;
  for (const KvType type : {KvType::kInt8, KvType::kBF16}) {
    const int64_t rows = 2 * 4 * 64;
    const int64_t page_bytes = type == KvType::kInt8 ? rows * (kDim + kDim / 64 * 2) : rows * kDim * 2;
    auto pages = random(kPages * page_bytes, 5);
    const auto q = random(kTokens * kHeads * kDim * 4, 6);
    std::vector<int32_t> numbers(kPages);
    std::iota(numbers.begin(), numbers.end(), 0);
    Array<int32_t> block_table(*card_, numbers);
    const ops::Run run{.position = kPosition, .tokens = kTokens, .slot = nullptr, .block_table = block_table.data()};
    Array<ops::Run> runs(*card_, {run});
    const Columns columns{.runs = {&run, 1}, .table = runs.data(), .each = kTokens, .reach = 512};
    KvLayer kv;
    kv.pages = pages.data();
    kv.page_bytes = page_bytes;
    kv.kv_heads = 4;
    kv.head_dim = kDim;
    kv.type = type;
    device::Buffer out(*card_->device, kTokens * kHeads * kDim * 4);
    compare(out, [&](const Context& context) {
      attention(context, columns,
                {.q = q.as<float>(),
                 .heads = kHeads,
                 .scale = 0.0625F,
                 .kv = kv,
                 .selection = nullptr,
                 .out = out.as<float>()});
    });
  }
}

TEST_F(CudaSmallerCard, ChunksOfTheDeltaNetHaveTheSameBits) {
  constexpr int64_t kTokens = 320;
  constexpr int64_t kKeyHeads = 16;
  constexpr int64_t kHeads = 48;
  constexpr int64_t kDim = 128;
  const auto qkv = random(kTokens * (2 * kKeyHeads + kHeads) * kDim * 4, 7);
  const auto gates = random(2 * kTokens * kHeads * 4, 8);
  const auto constants = random(2 * kHeads * 4, 9);
  device::Buffer state(*card_->device, kHeads * kDim * kDim * 4);
  const ops::Run run{.position = 0, .tokens = kTokens, .slot = state.data(), .block_table = nullptr};
  Array<ops::Run> runs(*card_, {run});
  const Columns columns{.runs = {&run, 1}, .table = runs.data(), .each = kTokens, .reach = kTokens};
  device::Buffer out(*card_->device, kTokens * kHeads * kDim * 4);
  compare(out, [&](const Context& context) {
    card_->device->zero(state.data(), state.bytes());
    Ops::DeltaNet args;
    args.qkv = qkv.as<float>();
    args.a = gates.as<float>();
    args.b = gates.as<float>() + kTokens * kHeads;
    args.a_log = constants.as<float>();
    args.dt_bias = constants.as<float>() + kHeads;
    args.key_heads = kKeyHeads;
    args.value_heads = kHeads;
    args.key_dim = kDim;
    args.value_dim = kDim;
    args.out = out.as<float>();
    delta_net(context, columns, args);
  });
}

}  // namespace
}  // namespace tandem::ops::cuda
