// Norms, gates, hyper-connections, the router and what follows the logits, on the card against the host's.
#include <cmath>
#include <gtest/gtest.h>

#include "base/pool.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/hyper.h"
#include "ops/cuda/router.h"
#include "ops/cuda/sampling.h"
#include "ops/host/host_ops.h"
#include "tests/ops/cuda/skip_without_card.h"
#include "tests/ops/cuda/state_card.h"

namespace tandem::ops::cuda {
namespace {

std::vector<double> doubled(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}
std::vector<float> slice(const std::vector<float>& values, int64_t begin, int64_t end, int64_t width) {
  return {values.begin() + begin * width, values.begin() + end * width};
}

// Widths of the models, one that is no multiple of four, one below a warp.
constexpr int64_t kWidths[] = {256, 2560, 5120, 10240, 250, 7};

class CudaMixing : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_A_CARD();
    card = std::make_unique<StateCard>();
  }
  RandomData random;
  std::unique_ptr<StateCard> card;
  base::WorkerPool pool{2};
  host::HostOps host{pool, true};
};

TEST_F(CudaMixing, SumsAndGatesHaveTheHostsBits) {
  for (const int64_t width : kWidths) {
    for (const int64_t tokens : {1, 3, 40}) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << width);
      const int64_t count = tokens * width;
      auto x = random.normal(count, 4.0F);
      const auto y = random.normal(count, 4.0F);
      auto streams = random.normal(4 * count);
      const auto inject = random.normal(4 * tokens);
      auto out = poisoned(2 * count);
      Array<float> x_array(*card, x), y_array(*card, y), streams_array(*card, streams), out_array(*card, out),
          inject_array(*card, inject);
      const Context& context = card->context;

      add(context, x_array.data(), y_array.data(), count);
      host.add(x.data(), y.data(), count);
      EXPECT_EQ(x_array.get(), x);
      add_to_streams(context, streams_array.data(), x_array.data(), tokens, 4, width);
      host.add_to_streams(streams.data(), x.data(), tokens, 4, width);
      EXPECT_EQ(streams_array.get(), streams);
      hyper_inject(context, streams_array.data(), x_array.data(), inject_array.data(), tokens, 4, width);
      host.hyper_inject(streams.data(), x.data(), inject.data(), tokens, 4, width);
      EXPECT_EQ(streams_array.get(), streams);
      concatenate(context, x_array.data(), y_array.data(), tokens, width, out_array.data());
      host.concatenate(x.data(), y.data(), tokens, width, out.data());
      EXPECT_EQ(out_array.get(), out);
      silu_multiply(context, y_array.data(), x_array.data(), count, x_array.data());
      host.silu_multiply(y.data(), x.data(), count, x.data());
      EXPECT_EQ(x_array.get(), x);
    }
  }
}

TEST_F(CudaMixing, NormsFollowTheHostAndAreTheSameInAnyCompany) {
  for (const int64_t width : kWidths) {
    for (const int64_t groups : {1, 4}) {
      SCOPED_TRACE(testing::Message() << groups << " x " << width);
      constexpr int64_t kTokens = 8;
      const auto x = random.normal(kTokens * groups * width, 3.0F);
      const auto weight = random.normal(groups * width, 0.3F);
      auto want = poisoned(kTokens * groups * width);
      Array<float> x_array(*card, x), weight_array(*card, weight), out(*card, want);
      rms_norm(card->context, x_array.data(), kTokens, groups, width, weight_array.data(), 1e-6F, out.data());
      host.rms_norm(x.data(), kTokens, groups, width, weight.data(), 1e-6F, want.data());
      const auto got = out.get();
      EXPECT_LT(relative_error(got, doubled(want)), 3e-7);
      Array<float> one(*card, slice(x, 5, 6, groups * width)), alone(*card, poisoned(groups * width));
      rms_norm(card->context, one.data(), 1, groups, width, weight_array.data(), 1e-6F, alone.data());
      EXPECT_EQ(alone.get(), slice(got, 5, 6, groups * width));
    }
  }
}

TEST_F(CudaMixing, ASumAndItsNormHaveTheBitsOfTheTwoOneAfterTheOther) {
  for (const int64_t width : kWidths) {
    for (const int64_t tokens : {1, 8, 40}) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << width);
      const int64_t count = tokens * width;
      const auto y = random.normal(count, 3.0F);
      const auto weight = random.normal(width, 0.3F);
      Array<float> both(*card, y), sum(*card, y), x(*card, random.normal(count)), weight_array(*card, weight);
      Array<float> out(*card, poisoned(count)), want(*card, poisoned(count));
      const Context& context = card->context;
      add_rms_norm(context, both.data(), x.data(), tokens, width, weight_array.data(), 1e-6F, out.data());
      add(context, sum.data(), x.data(), count);
      rms_norm(context, sum.data(), tokens, 1, width, weight_array.data(), 1e-6F, want.data());
      EXPECT_EQ(both.get(), sum.get());
      EXPECT_EQ(out.get(), want.get());
    }
  }
}

TEST_F(CudaMixing, GatedNormsFollowTheHost) {
  for (const int64_t dim : {128, 64, 48, 7}) {
    for (const bool sigmoid : {false, true}) {
      const int64_t heads = 7;
      auto x = random.normal(3 * heads * dim, 3.0F);
      const auto z = random.normal(3 * heads * dim, 3.0F);
      const auto weight = random.normal(dim);
      Array<float> x_array(*card, x), z_array(*card, z), weight_array(*card, weight);
      gated_norm(card->context, x_array.data(), z_array.data(), 3, heads, dim, weight_array.data(), 1e-6F, sigmoid);
      host.gated_norm(x.data(), z.data(), 3, heads, dim, weight.data(), 1e-6F, sigmoid);
      EXPECT_LT(relative_error(x_array.get(), doubled(x)), 3e-7);
    }
  }
}

struct HyperCase {
  int64_t hidden, lowrank;
  bool injects = true;
  bool rounds = true;
  int64_t streams = 4;
};

void compare_hyper(const HyperCase& test) {
  SCOPED_TRACE(testing::Message() << "hidden " << test.hidden << ", rank " << test.lowrank
                                  << (test.injects ? "" : ", final") << (test.rounds ? "" : ", FP32"));
  RandomData random;
  StateCard card(test.rounds);
  base::WorkerPool pool(2);
  host::HostOps host(pool, test.rounds);
  const int64_t width = test.streams * test.hidden;
  const float scale = 1.0F / std::sqrt(static_cast<float>(test.hidden));
  BothWeights down(card, random.normal_bf16(test.lowrank * width, scale), test.lowrank, width);
  BothWeights up(card, random.normal_bf16(width * test.lowrank, 0.2F), width, test.lowrank);
  BothWeights in(card, random.normal_bf16(test.streams * width, scale), test.streams, width);
  const auto norm = random.normal(width, 0.2F);
  Array<float> norm_array(card, norm);
  HyperWeights weights{norm_array.data(), down.device, up.device, {}};
  HyperWeights host_weights{norm.data(), down.host, up.host, {}};
  if (test.injects) {
    weights.inject = in.device;
    host_weights.inject = in.host;
  }
  constexpr int64_t kMost = 200;
  const auto state = random.normal(kMost * width, 2.0F);
  Array<float> state_array(card, state);
  auto want = poisoned(kMost * test.hidden);
  auto want_inject = poisoned(kMost * test.streams);
  host.hyper_mix(host_weights, state.data(), kMost, test.streams, test.hidden, 1e-6F, want.data(),
                 test.injects ? want_inject.data() : nullptr);
  std::vector<float> few, few_inject;
  for (const int64_t tokens : {8, 1, 2, 3, 5, 7, 21, 200}) {
    // Columns from the end of the first eight, so that each stands at many places.
    const int64_t begin = tokens <= 8 ? 8 - tokens : 0;
    Array<float> x(card, poisoned(tokens * test.hidden)), inject(card, poisoned(tokens * test.streams));
    hyper_mix(card.context, weights, state_array.data() + begin * width, tokens, test.streams, test.hidden, 1e-6F,
              x.data(), test.injects ? inject.data() : nullptr);
    const auto got = x.get();
    const double error = relative_error(got, doubled(slice(want, begin, begin + tokens, test.hidden)));
    // Few columns are rounded before the norm's scale is applied, the host's behind it: roundings of up to 2^-9 each,
    // of numbers that differ.
    EXPECT_LT(error, !test.rounds ? 2e-5 : tokens <= 8 ? 3e-3 : 3e-4) << tokens;
    double inject_error = 0;
    if (test.injects) {
      inject_error = relative_error(inject.get(), doubled(slice(want_inject, begin, begin + tokens, test.streams)));
      EXPECT_LT(inject_error, 2e-6) << tokens;
    }
    if (tokens == 8) {
      few = got;
      few_inject = inject.get();
      std::printf("  hyper_mix %lld: %.1e, inject %.1e\n", static_cast<long long>(test.hidden), error, inject_error);
    } else if (tokens < 8) {
      EXPECT_EQ(got, slice(few, begin, 8, test.hidden)) << tokens;
      if (test.injects) {
        EXPECT_EQ(inject.get(), slice(few_inject, begin, 8, test.streams)) << tokens;
      }
    }
  }
}

TEST(CudaHyper, MixesFollowTheHostAndAreTheSameInAnyCompany) {
  SKIP_WITHOUT_A_CARD();
  compare_hyper({256, 16});
  compare_hyper({2560, 320});
  compare_hyper({2560, 320, false});
  compare_hyper({2560, 320, true, false});
  compare_hyper({384, 32});
  compare_hyper({1408, 96});
  compare_hyper({288, 40});                 // no multiples of 128 and 32
  compare_hyper({250, 12});                 // no multiple of 32
  compare_hyper({256, 16, true, true, 2});  // other streams than the fast way's
}

TEST_F(CudaMixing, AnInjectionGoesIntoTheNextMix) {
  for (const auto& [hidden, lowrank] : std::vector<std::pair<int64_t, int64_t>>{{2560, 320}, {384, 32}, {1408, 96}}) {
    const int64_t width = 4 * hidden;
    const float scale = 1.0F / std::sqrt(static_cast<float>(hidden));
    BothWeights down(*card, random.normal_bf16(lowrank * width, scale), lowrank, width);
    BothWeights up(*card, random.normal_bf16(width * lowrank, 0.2F), width, lowrank);
    BothWeights in(*card, random.normal_bf16(4 * width, scale), 4, width);
    Array<float> norm(*card, random.normal(width, 0.2F));
    const HyperWeights weights{norm.data(), down.device, up.device, in.device};
    for (const int64_t tokens : {1, 2, 4, 5, 8, 9, 130, 300}) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << hidden);
      const auto state = random.normal(tokens * width, 2.0F);
      Array<float> want_state(*card, state), got_state(*card, state), y(*card, random.normal(tokens * hidden)),
          inject(*card, random.normal(tokens * 4)), want(*card, poisoned(tokens * hidden)),
          got(*card, poisoned(tokens * hidden)), want_next(*card, poisoned(tokens * 4)),
          got_next(*card, poisoned(tokens * 4));
      const Context& context = card->context;
      ASSERT_TRUE(hyper_inject_mix(context, got_state.data(), y.data(), inject.data(), weights, tokens, 4, hidden,
                                   1e-6F, got.data(), got_next.data()));
      hyper_inject(context, want_state.data(), y.data(), inject.data(), tokens, 4, hidden);
      hyper_mix(context, weights, want_state.data(), tokens, 4, hidden, 1e-6F, want.data(), want_next.data());
      EXPECT_EQ(got_state.get(), want_state.get());
      EXPECT_EQ(got.get(), want.get());
      EXPECT_EQ(got_next.get(), want_next.get());
    }
  }
}

TEST_F(CudaMixing, TheRouterChoosesAsTheHost) {
  for (const auto& [experts, top_k] :
       std::vector<std::pair<int64_t, int64_t>>{{512, 10}, {24, 4}, {100, 3}, {600, 8}}) {
    for (const int64_t tokens : {1, 7, 33}) {
      const int64_t hidden = experts == 512 ? 2560 : 256;
      BothWeights w(*card, random.normal_bf16(experts * hidden, 0.03F), experts, hidden);
      const auto x = random.normal(tokens * hidden);
      std::vector<int32_t> want_ids(static_cast<size_t>(tokens * top_k)), ids(want_ids.size(), -1);
      auto want = poisoned(tokens * top_k);
      Array<float> x_array(*card, x), weights(*card, want);
      Array<int32_t> ids_array(*card, ids);
      router(card->context, x_array.data(), tokens, w.device, top_k, ids_array.data(), weights.data());
      host.router(x.data(), tokens, w.host, top_k, want_ids.data(), want.data());
      const auto got = weights.get();
      ids = ids_array.get();
      for (size_t i = 0; i < ids.size(); ++i) {
        // Logits of magnitude 1 to 8 differ by a few 1e-7 of the sum of their terms' magnitudes.
        EXPECT_NEAR(got[i], want[i], 2e-5F * want[i]);
        if (ids[i] == want_ids[i]) continue;
        // Only neighbours whose weights are as good as equal may have changed places.
        const auto host_neighbour = [&](size_t j) {
          return j < want.size() && std::fabs(want[j] - want[i]) < 4e-5F * want[i];
        };
        EXPECT_TRUE(host_neighbour(i + 1) || host_neighbour(i - 1) || (i + 1) % static_cast<size_t>(top_k) == 0)
            << "rank " << i << " of " << experts;
      }
    }
  }
}

TEST_F(CudaMixing, TheRouterBringsTheGateAlong) {
  for (const auto& [hidden, experts] : std::vector<std::pair<int64_t, int64_t>>{{2560, 512}, {64, 16}, {4092, 30}}) {
    constexpr int64_t kTopK = 10;
    BothWeights w(*card, random.normal_bf16(experts * hidden, 0.03F), experts, hidden);
    BothWeights gate(*card, random.normal_bf16(hidden, 0.03F), 1, hidden);
    const auto x = random.normal(8 * hidden);
    std::vector<float> weights, gates;
    std::vector<int32_t> ids;
    for (const int64_t tokens : {8, 1, 2, 3, 4, 5, 7, 12}) {
      SCOPED_TRACE(testing::Message() << tokens << " by " << experts << " x " << hidden);
      const int64_t begin = tokens <= 8 ? 8 - tokens : 0;  // of the first eight, each at many places
      const std::vector<float> inputs =
          slice(tokens <= 8 ? x : random.normal(tokens * hidden), begin, begin + tokens, hidden);
      Array<float> columns(*card, inputs);
      Array<float> got(*card, poisoned(tokens * kTopK)), got_gates(*card, poisoned(tokens));
      Array<int32_t> got_ids(*card, std::vector<int32_t>(static_cast<size_t>(tokens * kTopK), -1));
      router_and_gate(card->context, columns.data(), tokens, w.device, gate.device, kTopK, got_ids.data(), got.data(),
                      got_gates.data());
      auto want = poisoned(tokens * kTopK), want_gates = poisoned(tokens);
      std::vector<int32_t> want_ids(static_cast<size_t>(tokens * kTopK));
      host.router_and_gate(inputs.data(), tokens, w.host, gate.host, kTopK, want_ids.data(), want.data(),
                           want_gates.data());
      EXPECT_LT(relative_error(got.get(), doubled(want)), 1e-5);
      // A gate may be close to zero, its terms are not.
      const float terms = 0.03F * std::sqrt(static_cast<float>(hidden));
      const auto card_gates = got_gates.get();
      for (size_t i = 0; i < card_gates.size(); ++i) EXPECT_NEAR(card_gates[i], want_gates[i], 2e-6F * terms);
      if (tokens == 8) {
        weights = got.get();
        gates = got_gates.get();
        ids = got_ids.get();
      } else if (tokens < 8) {
        EXPECT_EQ(got.get(), slice(weights, begin, 8, kTopK));
        EXPECT_EQ(got_gates.get(), slice(gates, begin, 8, 1));
        EXPECT_EQ(got_ids.get(), std::vector<int32_t>(ids.begin() + begin * kTopK, ids.end()));
      }
    }
  }
}

// Few distinct values, so that many are as large as the last one chosen.
TEST_F(CudaMixing, TheRouterChoosesAmongManyEquals) {
  for (const int64_t experts : {512, 100, 33, 1000}) {
    for (const int64_t values : {1, 2, 5, 60}) {
      constexpr int64_t kTokens = 3, kTopK = 10;
      std::vector<float> logits;
      for (int64_t i = 0; i < kTokens * experts; ++i) {
        logits.push_back(0.25F * static_cast<float>(random.between(0, values - 1)));
      }
      std::vector<int32_t> want;
      for (int64_t t = 0; t < kTokens; ++t) {
        std::vector<int32_t> order(static_cast<size_t>(experts));
        for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return logits[static_cast<size_t>(t * experts + a)] > logits[static_cast<size_t>(t * experts + b)];
        });
        want.insert(want.end(), order.begin(), order.begin() + kTopK);
      }
      Array<float> logits_array(*card, logits), weights(*card, poisoned(kTokens * kTopK));
      Array<int32_t> ids(*card, std::vector<int32_t>(kTokens * kTopK, -1));
      choose_experts(card->context, logits_array.data(), kTokens, experts, kTopK, ids.data(), weights.data());
      EXPECT_EQ(ids.get(), want) << experts << " experts, " << values << " values";
    }
  }
}

TEST_F(CudaMixing, TheRouterTakesTheLowerIdAmongEquals) {
  constexpr int64_t kExperts = 512;
  std::vector<float> logits(kExperts, 0.5F);
  logits[77] = logits[400] = logits[33] = 2.0F;
  Array<float> logits_array(*card, logits), weights(*card, poisoned(10));
  Array<int32_t> ids(*card, std::vector<int32_t>(10, -1));
  choose_experts(card->context, logits_array.data(), 1, kExperts, 10, ids.data(), weights.data());
  EXPECT_EQ(ids.get(), (std::vector<int32_t>{33, 77, 400, 0, 1, 2, 3, 4, 5, 6}));
  float sum = 0;
  for (const float w : weights.get()) sum += w;
  EXPECT_NEAR(sum, 1.0F, 1e-6F);
}

TEST_F(CudaMixing, ExpertsAreCombinedAsOnTheHost) {
  for (const int64_t hidden : {256, 2560, 250}) {
    const int64_t tokens = 5;
    const auto lower = random.normal(tokens * hidden), upper = random.normal(tokens * hidden),
               shared_lower = random.normal(tokens * hidden), shared_upper = random.normal(tokens * hidden),
               gate = random.normal(tokens);
    auto want = poisoned(tokens * hidden);
    Array<float> a(*card, lower), b(*card, upper), c(*card, shared_lower), d(*card, shared_upper), g(*card, gate),
        out(*card, want);
    combine_experts(card->context, a.data(), b.data(), c.data(), d.data(), g.data(), tokens, hidden, out.data());
    host.combine_experts(lower.data(), upper.data(), shared_lower.data(), shared_upper.data(), gate.data(), tokens,
                         hidden, want.data());
    EXPECT_LT(relative_error(out.get(), doubled(want)), 2e-7);
  }
}

TEST_F(CudaMixing, TheLargestAllowedLogitIsTheFirstOfItsValueAndFaultsAreTold) {
  for (const int64_t tokens : {int64_t{248077}, int64_t{4096}, int64_t{100}, int64_t{1}}) {
    constexpr int64_t kRows = 8;
    const int64_t vocab = tokens + 243;
    const int64_t words = (tokens + 31) / 32;
    auto logits = random.normal(kRows * vocab);
    std::vector<uint32_t> allowed(static_cast<size_t>(kRows * words));
    for (uint32_t& word : allowed) word = static_cast<uint32_t>(random.engine()());
    for (int64_t r = 0; r < kRows; ++r) {
      float* row = logits.data() + r * vocab;
      for (int i = 0; i < 4; ++i) row[random.between(0, tokens - 1)] = 100.0F;
      row[tokens] = 200.0F;  // padding is no token
      row[tokens + 1] = std::numeric_limits<float>::quiet_NaN();
      if (r == 3) row[random.between(0, tokens - 1)] = std::numeric_limits<float>::quiet_NaN();
      if (r == 4) row[random.between(0, tokens - 1)] = -std::numeric_limits<float>::infinity();
      if (r == 5) std::fill_n(allowed.begin() + r * words, words, 0);
      if (r == 6) std::fill_n(row, tokens, -1.0F);
      if (r == 7) std::fill_n(row, tokens, std::numeric_limits<float>::lowest());
    }
    Array<float> logits_array(*card, logits);
    Array<uint32_t> allowed_array(*card, allowed);
    auto ids = device::Buffer::shared(*card->device, kRows * 4);
    for (const bool masked : {false, true}) {
      std::vector<int32_t> want(kRows);
      Ops::Greedy args{.logits = logits.data(),
                       .rows = kRows,
                       .vocab = vocab,
                       .tokens = tokens,
                       .allowed = masked ? allowed.data() : nullptr,
                       .ids = want.data()};
      host.greedy(args);
      EXPECT_EQ(want[3], -1);
      EXPECT_EQ(want[5] == -1, masked);
      args.logits = logits_array.data();
      args.allowed = masked ? allowed_array.data() : nullptr;
      args.ids = ids.as<int32_t>();
      std::fill_n(args.ids, kRows, -77);
      greedy(card->context, args);
      card->device->finish();
      EXPECT_EQ(std::vector<int32_t>(args.ids, args.ids + kRows), want) << tokens << (masked ? " masked" : "");
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cuda
