// Times of the small operations of a decode step of Flash-Next, alone and one behind the other as a layer has them.
#include <cstdio>

#include "ops/cuda/dense.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/hyper.h"
#include "ops/cuda/ngram.h"
#include "ops/cuda/router.h"
#include "tests/ops/cuda/state_timing.h"

namespace tandem::ops::cuda {
namespace {

constexpr int64_t kStreams = 4, kHidden = 2560, kRank = 320, kExperts = 512, kTopK = 10;
constexpr float kEps = 1e-6F;

struct Layer {
  HyperWeights hyper;
  Weight router, gate;
};

struct Activations {
  float *state, *x, *inject, *lower, *upper, *shared_lower, *shared_upper, *gate, *y, *weights;
  int32_t* ids;
};

void bench_layer(Bench& bench, int64_t tokens) {
  const Context& context = bench.card.context;
  std::vector<Layer> layers;
  for (int64_t c = 0; c < kCopies; ++c) {
    layers.push_back({{bench.filled(kStreams * kHidden), bench.weight(kRank, kStreams * kHidden),
                       bench.weight(kStreams * kHidden, kRank), bench.weight(kStreams, kStreams * kHidden)},
                      bench.weight(kExperts, kHidden),
                      bench.weight(1, kHidden)});
  }
  const auto floats = [&](int64_t each) { return bench.filled(tokens * each); };
  const Activations a{floats(kStreams * kHidden),
                      floats(kHidden),
                      floats(kStreams),
                      floats(kHidden),
                      floats(kHidden),
                      floats(kHidden),
                      floats(kHidden),
                      floats(1),
                      floats(kHidden),
                      floats(kTopK),
                      bench.filled<int32_t>(tokens * kTopK)};
  const auto mix = [&](int64_t c) {
    hyper_mix(context, layers[static_cast<size_t>(c)].hyper, a.state, tokens, kStreams, kHidden, kEps, a.x, a.inject);
  };
  const auto inject = [&] { hyper_inject(context, a.state, a.y, a.inject, tokens, kStreams, kHidden); };
  const auto route = [&](int64_t c) {
    router(context, a.x, tokens, layers[static_cast<size_t>(c)].router, kTopK, a.ids, a.weights);
  };
  const auto gate = [&](int64_t c) { linear(context, a.x, tokens, layers[static_cast<size_t>(c)].gate, true, a.gate); };
  const auto combine = [&] {
    combine_experts(context, a.lower, a.upper, a.shared_lower, a.shared_upper, a.gate, tokens, kHidden, a.y);
  };
  const auto report = [&](const char* name, const std::function<void(int64_t)>& call) {
    std::printf("%-38s %lld: %6.2f us\n", name, static_cast<long long>(tokens), microseconds(bench.card, call));
  };
  report("hyper_mix", mix);
  report("hyper_inject", [&](int64_t) { inject(); });
  report("inject, mix", [&](int64_t c) {
    inject();
    mix(c);
  });
  float* next_inject = floats(kStreams);
  const auto inject_mix = [&](int64_t c) {
    hyper_inject_mix(context, a.state, a.y, a.inject, layers[static_cast<size_t>(c)].hyper, tokens, kStreams, kHidden,
                     kEps, a.x, next_inject);
  };
  report("inject_mix", inject_mix);
  report("router", route);
  report("shared gate", gate);
  report("router, gate", [&](int64_t c) {
    route(c);
    gate(c);
  });
  const auto route_gate = [&](int64_t c) {
    const Layer& layer = layers[static_cast<size_t>(c)];
    router_and_gate(context, a.x, tokens, layer.router, layer.gate, kTopK, a.ids, a.weights, a.gate);
  };
  report("router_and_gate", route_gate);
  report("inject_mix, router_and_gate", [&](int64_t c) {
    inject_mix(c);
    route_gate(c);
  });
  report("combine, inject_mix, router_and_gate", [&](int64_t c) {
    combine();
    inject_mix(c);
    route_gate(c);
  });
  report("combine", [&](int64_t) { combine(); });
  report("combine, inject, mix", [&](int64_t c) {
    combine();
    inject();
    mix(c);
  });
  report("mix, router, gate, combine, inject", [&](int64_t c) {
    mix(c);
    route(c);
    gate(c);
    combine();
    inject();
  });
  bench.buffers.clear();
}

// A mix between the products that a layer has before and behind it: what is around it hides a part of it.
void bench_between(Bench& bench, int64_t tokens) {
  const Context& context = bench.card.context;
  constexpr int64_t kInner = 6144, kWide = 16384, kWideCopies = 5;
  std::vector<HyperWeights> hyper;
  std::vector<Weight> before, behind;
  for (int64_t c = 0; c < kCopies; ++c) {
    hyper.push_back({bench.filled(kStreams * kHidden), bench.weight(kRank, kStreams * kHidden),
                     bench.weight(kStreams * kHidden, kRank), bench.weight(kStreams, kStreams * kHidden)});
    if (c >= kWideCopies) continue;
    before.push_back(bench.weight(kHidden, kInner));
    behind.push_back(bench.weight(kWide, kHidden));
  }
  const auto floats = [&](int64_t each) { return bench.filled(tokens * each); };
  float *state = floats(kStreams * kHidden), *inner = floats(kInner), *y = floats(kHidden), *x = floats(kHidden),
        *wide = floats(kWide), *inject = floats(kStreams), *next_inject = floats(kStreams);
  const auto time = [&](bool mixes) {
    return microseconds(bench.card, [&](int64_t c) {
      const auto copy = static_cast<size_t>(c % kWideCopies);
      linear_sum(context, inner, tokens, before[copy], y);
      if (mixes) {
        hyper_inject_mix(context, state, y, inject, hyper[static_cast<size_t>(c)], tokens, kStreams, kHidden, kEps, x,
                         next_inject);
      }
      const Ops::Product product{behind[copy], wide};
      linear_group(context, x, tokens, {&product, 1}, false);
    });
  };
  const double without = time(false);
  const double with = time(true);
  std::printf("sum, inject_mix, group %lld: %.2f us, without the mix %.2f: %.2f\n", static_cast<long long>(tokens),
              with, without, with - without);
  bench.buffers.clear();
}

void bench_many(Bench& bench, int64_t tokens) {
  const Context& context = bench.card.context;
  const HyperWeights hyper{bench.filled(kStreams * kHidden), bench.weight(kRank, kStreams * kHidden),
                           bench.weight(kStreams * kHidden, kRank), bench.weight(kStreams, kStreams * kHidden)};
  const auto floats = [&](int64_t each) { return bench.filled(tokens * each); };
  float *state = floats(kStreams * kHidden), *y = floats(kHidden), *x = floats(kHidden), *inject = floats(kStreams),
        *next_inject = floats(kStreams);
  const double us = microseconds(
      bench.card,
      [&](int64_t) {
        hyper_inject_mix(context, state, y, inject, hyper, tokens, kStreams, kHidden, kEps, x, next_inject);
      },
      4);
  const double flops = 4.0 * static_cast<double>(tokens * kStreams * kHidden * kRank);
  std::printf("inject_mix %lld: %.1f us, %.0f TFLOP/s\n", static_cast<long long>(tokens), us, flops / us / 1e6);
  bench.buffers.clear();
}

void bench_memory(Bench& bench, int64_t tokens) {
  const Context& context = bench.card.context;
  constexpr int64_t kWidth = kStreams * kHidden;
  std::vector<NgramWeights> weights;
  constexpr int64_t kFew = 6;
  for (int64_t c = 0; c < kFew; ++c) {
    weights.push_back({.key = bench.weight(kWidth, kHidden),
                       .value = bench.weight(kHidden, kHidden),
                       .norm_key = bench.filled(kWidth),
                       .norm_query = bench.filled(kWidth),
                       .norm_conv = bench.filled(kWidth),
                       .conv = bench.filled(4 * kWidth)});
  }
  const float* rows = bench.filled(tokens * kHidden);
  float* state = bench.filled(tokens * kWidth);
  const BenchColumns columns = make_columns(bench, tokens, 1, 5, 9 * kWidth);
  const double us = microseconds(bench.card, [&](int64_t c) {
    ngram_memory(context, columns.columns(), weights[static_cast<size_t>(c % kFew)], rows, kStreams, kHidden, kEps, 0,
                 state);
  });
  std::printf("ngram_memory %lld: %.2f us\n", static_cast<long long>(tokens), us);
  const Weight table = bench.weight(50000, kHidden);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens * kCopies; ++i) ids.push_back(static_cast<int32_t>(i * 1237 % 50000));
  auto* device_ids = bench.filled<int32_t>(tokens * kCopies, true);
  bench.card.device->upload(device_ids, ids.data(), tokens * kCopies * 4);
  bench.card.device->finish();
  const double embed_us = microseconds(
      bench.card, [&](int64_t c) { embed(context, table, device_ids + c * tokens, tokens, kStreams, state); });
  std::printf("embed %lld: %.2f us\n", static_cast<long long>(tokens), embed_us);
  bench.buffers.clear();
}

}  // namespace
}  // namespace tandem::ops::cuda

int main() {
  if (tandem::device::cards().empty()) {
    std::printf("no card\n");
    return 0;
  }
  tandem::ops::cuda::Bench bench;
  for (const int64_t tokens : {1, 4, 8}) {
    tandem::ops::cuda::bench_layer(bench, tokens);
    tandem::ops::cuda::bench_between(bench, tokens);
    tandem::ops::cuda::bench_memory(bench, tokens);
  }
  for (const int64_t tokens : {512, 4096}) tandem::ops::cuda::bench_many(bench, tokens);
  return 0;
}
