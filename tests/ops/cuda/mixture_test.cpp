// A layer's feed-forward of experts at once, against its parts on the processor.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <string>

#include "base/pool.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/router.h"
#include "ops/host/host_ops.h"
#include "tests/ops/cuda/experts_data.h"
#include "tests/ops/cuda/skip_without_card.h"
#include "tests/ops/cuda/state_card.h"

namespace tandem::ops::cuda {
namespace {

struct Shape {
  int64_t experts, top_k, inner, hidden, shared;
};
constexpr Shape kShapes[] = {
    {48, 10, 640, 2560, 640},  // of Flash-Next, but fewer experts
    {512, 16, 64, 128, 256},   // 128 pairs
    {20, 3, 192, 320, 80},     // ragged
    {33, 2, 128, 3200, 16},
};

std::vector<double> doubled(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}
template <typename T>
std::vector<T> slice(const std::vector<T>& values, int64_t begin, int64_t end, int64_t width) {
  return {values.begin() + begin * width, values.begin() + end * width};
}

struct Layer {
  Shape shape;
  ExpertTable host, device;
  std::vector<std::byte> record_bytes;
  std::vector<float> scalar_values;
  Array<std::byte> records;
  Array<float> scalars;
  BothWeights router, shared_gate, gate, up, down;

  Layer(StateCard& card, RandomData& random, const Shape& of, int64_t scalars_each)
      : shape(of),
        host(table_of(of, scalars_each)),
        record_bytes(RandomRecords(random.engine(), false).make(host.record, of.experts, of.inner, of.hidden)),
        scalar_values(random_scalars(random.engine(), of.experts, scalars_each)),
        records(card, record_bytes),
        scalars(card, scalar_values),
        router(card, random.normal_bf16(of.experts * of.hidden, 0.03F), of.experts, of.hidden),
        shared_gate(card, random.normal_bf16(of.hidden, 0.03F), 1, of.hidden),
        gate(card, random.normal_bf16(of.shared * of.hidden, 0.03F), of.shared, of.hidden),
        up(card, random.normal_bf16(of.shared * of.hidden, 0.03F), of.shared, of.hidden),
        down(card, random.normal_bf16(of.hidden * of.shared, 0.03F), of.hidden, of.shared) {
    device = host;
    host.records = record_bytes.data();
    host.scalars = scalar_values.data();
    device.records = records.data();
    device.scalars = scalars.data();
  }

 private:
  static ExpertTable table_of(const Shape& of, int64_t scalars_each) {
    ExpertTable table;
    table.experts = of.experts;
    table.inner = of.inner;
    table.hidden = of.hidden;
    table.scalars_each = scalars_each;
    table.place({ExpertFormat::kNvfp4, ExpertFormat::kNvfp4, ExpertFormat::kNvfp4});
    return table;
  }
};

struct Result {
  std::vector<int32_t> ids, faults;
  std::vector<float> weights, gates, inner, shared_lower, shared_upper, out;
};

class CudaMixture : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_A_CARD();
    card_ = std::make_unique<StateCard>();
  }

  Result on_card(const Context& context, Layer& layer, const std::vector<float>& inputs, int64_t tokens) {
    const Shape& s = layer.shape;
    const auto memory = [&](int64_t each) { return Array<float>(*card_, poisoned(tokens * each)); };
    Array<float> x(*card_, inputs), weights = memory(s.top_k), out = memory(s.hidden), gates = memory(1),
                                    inner = memory(s.shared), other = memory(s.shared), shared_lower = memory(s.hidden),
                                    shared_upper = memory(s.hidden), lower = memory(s.hidden), upper = memory(s.hidden);
    Array<int32_t> ids(*card_, std::vector<int32_t>(static_cast<size_t>(tokens * s.top_k), -1)),
        faults(*card_, std::vector<int32_t>(static_cast<size_t>(tokens), -1));
    EXPECT_TRUE(expert_mixture(context, {.experts = {.x = x.data(),
                                                     .tokens = tokens,
                                                     .top_k = s.top_k,
                                                     .ids = ids.data(),
                                                     .weights = weights.data(),
                                                     .table = layer.device,
                                                     .quantise_activations = true,
                                                     .lower = lower.data(),
                                                     .upper = upper.data(),
                                                     .faults = faults.data(),
                                                     .fault = 7},
                                         .router = layer.router.device,
                                         .shared_gate = layer.shared_gate.device,
                                         .gate = layer.gate.device,
                                         .up = layer.up.device,
                                         .down = layer.down.device,
                                         .ids = ids.data(),
                                         .weights = weights.data(),
                                         .out = out.data(),
                                         .gates = gates.data(),
                                         .inner = inner.data(),
                                         .other = other.data(),
                                         .shared_lower = shared_lower.data(),
                                         .shared_upper = shared_upper.data()}));
    other.get(), lower.get(), upper.get();  // for what stands behind them
    return {ids.get(),   faults.get(),       weights.get(),      gates.get(),
            inner.get(), shared_lower.get(), shared_upper.get(), out.get()};
  }

  // Part by part, with what the card gave the parts before.
  void check(Layer& layer, const std::vector<float>& inputs, int64_t tokens, const Result& got, bool round) {
    const Shape& s = layer.shape;
    host::HostOps host(pool_, round);
    Array<float> x(*card_, inputs), weights(*card_, got.weights), gates(*card_, got.gates);
    Array<int32_t> ids(*card_, got.ids);
    router_and_gate(card_->context, x.data(), tokens, layer.router.device, layer.shared_gate.device, s.top_k,
                    ids.data(), weights.data(), gates.data());
    EXPECT_EQ(got.ids, ids.get());
    EXPECT_EQ(got.weights, weights.get());
    EXPECT_EQ(got.gates, gates.get());

    auto inner = poisoned(tokens * s.shared), other = inner;
    host.swiglu(inputs.data(), tokens, layer.gate.host, layer.up.host, inner.data(), other.data());
    EXPECT_LT(relative_error(got.inner, doubled(inner)), 1e-5);
    auto shared_lower = poisoned(tokens * s.hidden), shared_upper = shared_lower, lower = shared_lower,
         upper = shared_lower, want = shared_lower;
    host.linear_halves(got.inner.data(), tokens, layer.down.host, shared_lower.data(), shared_upper.data());
    // A kernel may keep them for itself.
    const bool apart = !std::isnan(got.shared_lower[0]);
    if (apart) {
      EXPECT_LT(relative_error(got.shared_lower, doubled(shared_lower)), 1e-6);
      EXPECT_LT(relative_error(got.shared_upper, doubled(shared_upper)), 1e-6);
      shared_lower = got.shared_lower;
      shared_upper = got.shared_upper;
    }

    std::vector<int32_t> faults(static_cast<size_t>(tokens), -1);
    host.experts({.x = inputs.data(),
                  .tokens = tokens,
                  .top_k = s.top_k,
                  .ids = got.ids.data(),
                  .weights = got.weights.data(),
                  .table = layer.host,
                  .quantise_activations = true,
                  .lower = lower.data(),
                  .upper = upper.data(),
                  .faults = faults.data(),
                  .fault = 7});
    EXPECT_EQ(got.faults, faults);
    host.combine_experts(lower.data(), upper.data(), shared_lower.data(), shared_upper.data(), got.gates.data(), tokens,
                         s.hidden, want.data());
    EXPECT_LT(relative_error(got.out, doubled(want)), apart ? 3e-7 : 1e-6);
  }

  RandomData random_;
  std::unique_ptr<StateCard> card_;
  base::WorkerPool pool_{4};
};

TEST_F(CudaMixture, GivesWhatItsPartsGive) {
  for (const Shape& shape : kShapes) {
    for (const int64_t each : {6, 3}) {
      Layer layer(*card_, random_, shape, each);
      for (const int64_t tokens : {1, 2, 5, 8}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, " << shape.experts << " experts of " << shape.inner
                                        << " by " << shape.hidden << ", " << each << " scalars");
        const auto x = random_.normal(tokens * shape.hidden);
        check(layer, x, tokens, on_card(card_->context, layer, x, tokens), true);
      }
      Context exact = card_->context;
      exact.round_inputs = false;
      const auto x = random_.normal(3 * shape.hidden);
      check(layer, x, 3, on_card(exact, layer, x, 3), false);
    }
  }
}

TEST_F(CudaMixture, AColumnHasTheSameBitsInAnyCompanyAndOnSmallerCards) {
  for (const Shape& shape : kShapes) {
    Layer layer(*card_, random_, shape, 6);
    const auto x = random_.normal(8 * shape.hidden);
    const Result all = on_card(card_->context, layer, x, 8);
    for (const int64_t tokens : {1, 2, 3, 4, 5, 8}) {
      for (const int64_t begin : {int64_t{0}, 8 - tokens}) {
        for (const bool small : {false, true}) {
          SCOPED_TRACE(testing::Message() << tokens << " tokens from " << begin << ", " << shape.experts << " experts"
                                          << (small ? ", smaller card" : ""));
          Context context = card_->context;
          if (small) {
            context.capability = 120;
            context.multiprocessors = 70;
          }
          const auto some = slice(x, begin, begin + tokens, shape.hidden);
          const Result got = on_card(context, layer, some, tokens);
          EXPECT_EQ(got.out, slice(all.out, begin, begin + tokens, shape.hidden));
          EXPECT_EQ(got.ids, slice(all.ids, begin, begin + tokens, shape.top_k));
          EXPECT_EQ(got.weights, slice(all.weights, begin, begin + tokens, shape.top_k));
        }
      }
    }
  }
}

// Rows of the router that are the same three or more times over.
TEST_F(CudaMixture, ChoosesAmongEqualsAsTheRouterDoes) {
  const Shape shape{512, 10, 64, 128, 16};
  Layer layer(*card_, random_, shape, 6);
  for (const int64_t same : {3, 8, 40, 512}) {
    const auto of_group = random_.normal_bf16(512 * shape.hidden, 0.03F);
    for (int64_t e = 0; e < shape.experts; ++e) {
      std::copy_n(of_group.begin() + e % ((511 + same) / same) * shape.hidden, shape.hidden,
                  layer.router.bits.begin() + e * shape.hidden);
    }
    layer.router.array.set(layer.router.bits);
    for (const int64_t tokens : {1, 2, 8}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << same << " alike");
      const auto x = random_.normal(tokens * shape.hidden);
      check(layer, x, tokens, on_card(card_->context, layer, x, tokens), true);
    }
  }
}

TEST_F(CudaMixture, LeavesOtherShapesAndFormatsToItsParts) {
  Layer layer(*card_, random_, kShapes[2], 6);
  const auto serves = [&](const auto& change) {
    Ops::ExpertMixture args{.experts = {.tokens = 2, .top_k = 3, .table = layer.device, .quantise_activations = true},
                            .router = layer.router.device,
                            .shared_gate = layer.shared_gate.device,
                            .gate = layer.gate.device,
                            .up = layer.up.device,
                            .down = layer.down.device};
    Scratch planning = Scratch::planning();
    Context context{.stream = card_->context.stream, .scratch = planning};
    change(context, args);
    return expert_mixture(context, args);
  };
  EXPECT_TRUE(serves([](Context&, Ops::ExpertMixture&) {}));
  EXPECT_FALSE(serves([](Context& context, Ops::ExpertMixture&) { context.tensor_cores = false; }));
  EXPECT_FALSE(serves([](Context&, Ops::ExpertMixture& args) { args.experts.tokens = 9; }));
  EXPECT_FALSE(serves([](Context&, Ops::ExpertMixture& args) { args.down.format = WeightFormat::kFp8Row; }));
  EXPECT_FALSE(serves([](Context&, Ops::ExpertMixture& args) { args.up.format = WeightFormat::kInt4; }));
  EXPECT_FALSE(serves([](Context&, Ops::ExpertMixture& args) { args.gate.rows = args.down.inputs = 72; }));
}

}  // namespace
}  // namespace tandem::ops::cuda
