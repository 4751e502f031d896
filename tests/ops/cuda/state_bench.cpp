// Times of the operations of state, norms and gates at Flash-Next's shapes ("layer": at the 27B model's). Every figure
// is the median of nine rounds of a recorded graph of many calls over arrays that rotate through more than the
// second-level cache.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "ops/cuda/delta_net.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_measure.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/hyper.h"
#include "ops/cuda/ngram.h"
#include "ops/cuda/router.h"
#include "ops/cuda/sampling.h"
#include "tests/ops/cuda/state_timing.h"

namespace tandem::ops::cuda {
namespace {

void bench_read(Bench& bench) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const float* large = bench.filled(kBytes / 4, true);
  auto* sink = bench.filled<uint32_t>(8, true);
  auto* ids = bench.filled<int32_t>(8, true);
  const double us = microseconds(bench.card, [&](int64_t) { read_all(bench.card.context, large, kBytes, sink); }, 4);
  std::printf("a plain read of 1 GiB: %.2f TB/s\n", static_cast<double>(kBytes) / us * 1e-6);
  for (const int64_t rows : {1, 8}) {
    const float* real = bench.filled(rows * 248320);
    const Ops::Greedy args{
        .logits = real, .rows = rows, .vocab = 248320, .tokens = 248320, .allowed = nullptr, .ids = ids};
    const double each = microseconds(bench.card, [&](int64_t) { greedy(bench.card.context, args); });
    std::printf("greedy %lld x 248320: %.2f us\n", static_cast<long long>(rows), each);
    auto best = device::Buffer::shared(*bench.card.device, rows * Ops::kTopLogits * 8);
    auto counts = device::Buffer::shared(*bench.card.device, rows * 4);
    const Ops::TopLogits top{.logits = real,
                             .rows = rows,
                             .vocab = 248320,
                             .tokens = 248320,
                             .allowed = nullptr,
                             .best = best.as<TokenLogit>(),
                             .counts = counts.as<int32_t>()};
    const double us_of_top = microseconds(bench.card, [&](int64_t) { top_logits(bench.card.context, top); });
    std::printf("top_logits %lld x 248320: %.2f us\n", static_cast<long long>(rows), us_of_top);
  }
  bench.buffers.clear();
}

void bench_delta(Bench& bench, int64_t runs, int64_t each, int64_t copies, int64_t position) {
  constexpr int64_t kHeads = 48, kKeyHeads = 16, kDim = 128;
  const int64_t stride = 2 * kKeyHeads * kDim + kHeads * kDim;
  const int64_t tokens = runs * each;
  std::vector<BenchColumns> columns;
  for (int64_t c = 0; c < copies; ++c)
    columns.push_back(make_columns(bench, runs, each, position, kHeads * kDim * kDim));
  Ops::DeltaNet args{.qkv = bench.filled(tokens * stride),
                     .a = bench.filled(tokens * kHeads),
                     .b = bench.filled(tokens * kHeads),
                     .a_log = bench.filled(kHeads),
                     .dt_bias = bench.filled(kHeads),
                     .key_heads = kKeyHeads,
                     .value_heads = kHeads,
                     .key_dim = kDim,
                     .value_dim = kDim,
                     .state = 0,
                     .out = bench.filled(tokens * kHeads * kDim)};
  const double us = microseconds(
      bench.card, [&](int64_t c) { delta_net(bench.card.context, columns[static_cast<size_t>(c)].columns(), args); },
      copies);
  const double bytes = static_cast<double>(2 * runs * kHeads * kDim * kDim * 4);
  std::printf("delta_net %lld x %lld at %lld: %.2f us, state %.2f TB/s, %.3f us a column\n",
              static_cast<long long>(runs), static_cast<long long>(each), static_cast<long long>(position), us,
              bytes / us * 1e-6, us / static_cast<double>(tokens));
  bench.buffers.clear();
}

void bench_hyper(Bench& bench, int64_t tokens, int64_t copies) {
  constexpr int64_t kStreams = 4, kHidden = 2560, kRank = 320;
  std::vector<HyperWeights> weights;
  for (int64_t c = 0; c < copies; ++c) {
    weights.push_back({bench.filled(kStreams * kHidden), bench.weight(kRank, kStreams * kHidden),
                       bench.weight(kStreams * kHidden, kRank), bench.weight(kStreams, kStreams * kHidden)});
  }
  const float* state = bench.filled(tokens * kStreams * kHidden);
  float* x = bench.filled(tokens * kHidden);
  float* inject = bench.filled(tokens * kStreams);
  const double us = microseconds(
      bench.card,
      [&](int64_t c) {
        hyper_mix(bench.card.context, weights[static_cast<size_t>(c)], state, tokens, kStreams, kHidden, 1e-6F, x,
                  inject);
      },
      copies);
  const double bytes = 2.0 * (2 * kRank + kStreams) * kStreams * kHidden;
  std::printf("hyper_mix %lld: %.2f us, weights %.2f TB/s\n", static_cast<long long>(tokens), us, bytes / us * 1e-6);
  if (tokens > 8) {
    const double inject_us = microseconds(bench.card, [&](int64_t) {
      hyper_inject(bench.card.context, bench.buffers[0].as<float>(), x, inject, 1, kStreams, kHidden);
    });
    std::printf("hyper_inject 1: %.2f us\n", inject_us);
  }
  bench.buffers.clear();
}

void bench_small(Bench& bench, int64_t tokens) {
  constexpr int64_t kChannels = 10240;
  const BenchColumns columns = make_columns(bench, 1, tokens, 0, 9 * kChannels);
  const float* x = bench.filled(tokens * kChannels);
  const float* weight = bench.filled(4 * kChannels);
  float* out = bench.filled(tokens * kChannels);
  const Context& context = bench.card.context;
  const auto report = [&](const char* name, double bytes, const std::function<void()>& call) {
    const double us = microseconds(bench.card, [&](int64_t) { call(); });
    std::printf("%s %lld: %.2f us, %.2f TB/s\n", name, static_cast<long long>(tokens), us, bytes / us * 1e-6);
  };
  const double wide = 4.0 * static_cast<double>(tokens) * kChannels;
  report("causal_conv", 2 * wide, [&] { causal_conv(context, columns.columns(), x, kChannels, weight, 4, 1, 0, out); });
  report("causal_conv, dilation 3,", 2 * wide,
         [&] { causal_conv(context, columns.columns(), x, kChannels, weight, 4, 3, 0, out); });
  report("rms_norm 4 x 2560", 2 * wide, [&] { rms_norm(context, x, tokens, 4, 2560, weight, 1e-6F, out); });
  report("rms_norm 1 x 5120", wide, [&] { rms_norm(context, x, tokens, 1, 5120, weight, 1e-6F, out); });
  report("gated_norm 48 x 128", 3 * wide * 6144 / kChannels,
         [&] { gated_norm(context, out, x, tokens, 48, 128, weight, 1e-6F, true); });
  report("add", 3 * wide / 4, [&] { add(context, out, x, tokens * 2560); });
  report("silu_multiply", 3 * wide / 4, [&] { silu_multiply(context, x, x, tokens * 2560, out); });
  auto* ids = bench.filled<int32_t>(tokens * 10);
  float* weights = bench.filled(tokens * 10);
  report("choose_experts 10 of 512", wide * 512 / kChannels,
         [&] { choose_experts(context, x, tokens, 512, 10, ids, weights); });
  bench.buffers.clear();
}

// The small operations of a DeltaNet layer of the 27B model, in the order of a decode step: what stands between its
// three wide products.
void bench_layer(Bench& bench, int64_t runs, int64_t each, int64_t copies) {
  constexpr int64_t kHidden = 5120, kHeads = 48, kKeyHeads = 16, kDim = 128;
  constexpr int64_t kChannels = (2 * kKeyHeads + kHeads) * kDim;
  const int64_t tokens = runs * each;
  std::vector<BenchColumns> columns;
  std::vector<std::array<Weight, 2>> gates;
  for (int64_t c = 0; c < copies; ++c) {
    columns.push_back(make_columns(bench, runs, each, 3, kHeads * kDim * kDim + 3 * kChannels));
    gates.push_back({bench.weight(kHeads, kHidden), bench.weight(kHeads, kHidden)});
  }
  float* state = bench.filled(tokens * kHidden);
  float* y = bench.filled(tokens * kHidden);
  float* x = bench.filled(tokens * kHidden);
  float* raw = bench.filled(tokens * kChannels);
  float* qkv = bench.filled(tokens * kChannels);
  float* a = bench.filled(tokens * kHeads);
  float* b = bench.filled(tokens * kHeads);
  float* z = bench.filled(tokens * kHeads * kDim);
  float* out = bench.filled(tokens * kHeads * kDim);
  float* conv = bench.filled(4 * kChannels);
  float* norm = bench.filled(kHidden);
  const Ops::DeltaNet args{.qkv = qkv,
                           .a = a,
                           .b = b,
                           .a_log = bench.filled(kHeads),
                           .dt_bias = bench.filled(kHeads),
                           .key_heads = kKeyHeads,
                           .value_heads = kHeads,
                           .key_dim = kDim,
                           .value_dim = kDim,
                           .state = 0,
                           .out = out};
  const Context& context = bench.card.context;
  const auto norms = [&](int64_t) { add_rms_norm(context, state, y, tokens, kHidden, norm, 1e-6F, x); };
  const auto products = [&](int64_t c) {
    const auto& pair = gates[static_cast<size_t>(c)];
    const Ops::Product both[] = {{pair[0], a}, {pair[1], b}};
    linear_group(context, x, tokens, both, true);
  };
  const auto mixer = [&](int64_t c) {
    const Columns at = columns[static_cast<size_t>(c)].columns();
    causal_conv(context, at, raw, kChannels, conv, 4, 1, kHeads * kDim * kDim * 4, qkv);
    delta_net(context, at, args);
    gated_norm(context, out, z, tokens, kHeads, kDim, norm, 1e-6F, false);
  };
  const auto report = [&](const char* name, const std::function<void(int64_t)>& call) {
    std::printf("layer %lld x %lld, %s: %.2f us\n", static_cast<long long>(runs), static_cast<long long>(each), name,
                microseconds(bench.card, call, copies));
  };
  report("add, norm", norms);
  report("gates", products);
  report("convolution, delta, gated norm", mixer);
  const auto whole = [&](int64_t c) {
    const auto& pair = gates[static_cast<size_t>(c)];
    Ops::GatedDeltaNet one{.x = x,
                           .a_proj = pair[0],
                           .b_proj = pair[1],
                           .qkv = raw,
                           .conv = conv,
                           .history = kHeads * kDim * kDim * 4,
                           .z = z,
                           .norm = norm,
                           .net = args};
    if (!gated_delta_net(context, columns[static_cast<size_t>(c)].columns(), one)) std::printf("not served\n");
  };
  report("gated_delta_net", whole);
  // Between the wide products: what a launch costs where others' instructions and weights have passed since.
  std::vector<std::array<Weight, 3>> wide;
  for (int64_t c = 0; c < 8; ++c) {
    wide.push_back(
        {bench.nvfp4(kChannels, kHidden), bench.nvfp4(kHeads * kDim, kHidden), bench.nvfp4(kHidden, kHeads * kDim)});
  }
  const auto between = [&](const char* name, const std::function<void(int64_t)>& call) {
    report(name, [&](int64_t c) {
      const auto& [of_qkv, of_z, of_out] = wide[static_cast<size_t>(c) % wide.size()];
      const Ops::Product inputs[] = {{of_qkv, raw}, {of_z, z}};
      norms(c);
      linear_group(context, x, tokens, inputs, false);
      call(c);
      linear_sum(context, out, tokens, of_out, y);
    });
  };
  between("norm, wide products", [](int64_t) {});
  between("norm, wide products, six launches", [&](int64_t c) {
    products(c);
    mixer(c);
  });
  between("norm, wide products, gated_delta_net", whole);
  bench.buffers.clear();
}

void bench_deltas(Bench& bench) {
  for (const int64_t each : {1, 2, 4, 8}) bench_delta(bench, 1, each, kCopies, 3);
  for (const int64_t runs : {2, 4, 8}) bench_delta(bench, runs, 1, 20, 3);
  bench_delta(bench, 1, 63, 4, 0);
  std::printf("single steps alone: ");
  bench.card.context.tensor_cores = false;
  bench_delta(bench, 1, 1024, 2, 0);
  bench.card.context.tensor_cores = true;
}
void bench_chunks(Bench& bench) {
  for (const int64_t tokens : {64, 512, 4096}) bench_delta(bench, 1, tokens, 2, 0);
}

// The parts that the arguments name; without any, all.
int run(int count, char** names) {
  Bench bench;
  const auto wanted = [&](const char* name) {
    return count <= 1 || std::any_of(names + 1, names + count, [&](const char* n) { return !std::strcmp(n, name); });
  };
  if (wanted("read")) bench_read(bench);
  if (wanted("delta")) bench_deltas(bench);
  if (wanted("chunks")) bench_chunks(bench);
  if (wanted("layer")) {
    for (const auto& [runs, each] : std::array<std::array<int64_t, 2>, 5>{{{1, 1}, {1, 4}, {1, 8}, {4, 1}, {8, 1}}}) {
      bench_layer(bench, runs, each, kCopies / std::min<int64_t>(runs, 2));
    }
  }
  for (const int64_t tokens : {1, 8, 2048}) {
    if (wanted(tokens > 8 ? "mixes" : "mix")) bench_hyper(bench, tokens, tokens > 8 ? 2 : kCopies);
    if (wanted(tokens > 8 ? "passes" : "pass")) bench_small(bench, tokens);
  }
  return 0;
}

}  // namespace
}  // namespace tandem::ops::cuda

int main(int count, char** arguments) {
  if (tandem::device::cards().empty()) {
    std::printf("no card\n");
    return 0;
  }
  return tandem::ops::cuda::run(count, arguments);
}
