#include <cmath>
#include <gtest/gtest.h>

#include "ops/host/host_ops.h"
#include "tests/ops/columns.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::host {
namespace {

struct Operands {
  int64_t tokens, key_heads, value_heads, key_dim, value_dim;
  std::vector<float> qkv, a, b, a_log, dt_bias;

  Operands(RandomData& random, int64_t count)
      : tokens(count), key_heads(2), value_heads(6), key_dim(32), value_dim(48) {
    qkv = random.normal(tokens * stride());
    a = random.normal(tokens * value_heads);
    b = random.normal(tokens * value_heads);
    a_log = random.normal(value_heads, 0.5F);
    dt_bias = random.normal(value_heads, 0.5F);
  }
  int64_t stride() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t state_count() const { return value_heads * key_dim * value_dim; }
  int64_t out_width() const { return value_heads * value_dim; }

  // Steps [begin, end) through the operation, at absolute position `first + begin`.
  void run(HostOps& ops, int64_t begin, int64_t end, int64_t first, std::vector<float>& state,
           std::vector<float>& out) const {
    ops.delta_net(OneRun(first + begin, end - begin, state.data(), nullptr).columns(),
                  {.qkv = qkv.data() + begin * stride(),
                   .a = a.data() + begin * value_heads,
                   .b = b.data() + begin * value_heads,
                   .a_log = a_log.data(),
                   .dt_bias = dt_bias.data(),
                   .key_heads = key_heads,
                   .value_heads = value_heads,
                   .key_dim = key_dim,
                   .value_dim = value_dim,
                   .state = 0,
                   .out = out.data() + begin * out_width()});
  }

  // The recurrence as it is written, in double.
  std::vector<double> reference() const {
    std::vector<double> out(static_cast<size_t>(tokens * out_width()));
    for (int64_t h = 0; h < value_heads; ++h) {
      std::vector<double> m(static_cast<size_t>(key_dim * value_dim), 0.0);
      for (int64_t t = 0; t < tokens; ++t) {
        const float* row = qkv.data() + t * stride();
        const float* q = row + h / 3 * key_dim;
        const float* k = row + (key_heads + h / 3) * key_dim;
        const float* v = row + 2 * key_heads * key_dim + h * value_dim;
        double qq = 1e-6;
        double kk = 1e-6;
        for (int64_t i = 0; i < key_dim; ++i) {
          qq += static_cast<double>(q[i]) * q[i];
          kk += static_cast<double>(k[i]) * k[i];
        }
        const auto at = static_cast<size_t>(t * value_heads + h);
        const double beta = 1 / (1 + std::exp(-static_cast<double>(b[at])));
        const double g = -std::exp(static_cast<double>(a_log[static_cast<size_t>(h)])) *
                         std::log1p(std::exp(static_cast<double>(a[at]) + dt_bias[static_cast<size_t>(h)]));
        for (double& x : m) x *= std::exp(g);
        for (int64_t j = 0; j < value_dim; ++j) {
          double recalled = 0;
          for (int64_t i = 0; i < key_dim; ++i)
            recalled += m[static_cast<size_t>(i * value_dim + j)] * k[i] / std::sqrt(kk);
          const double change = beta * (v[j] - recalled);
          double answer = 0;
          for (int64_t i = 0; i < key_dim; ++i) {
            double& x = m[static_cast<size_t>(i * value_dim + j)];
            x += k[i] / std::sqrt(kk) * change;
            answer += x * q[i] / std::sqrt(qq) / std::sqrt(static_cast<double>(key_dim));
          }
          out[static_cast<size_t>(t * out_width() + h * value_dim + j)] = answer;
        }
      }
    }
    return out;
  }
};

TEST(DeltaNet, ChunksAndStepsFollowTheRecurrence) {
  RandomData random;
  base::WorkerPool pool(2);
  HostOps ops(pool, false);
  const Operands operands(random, 150);
  const auto want = operands.reference();
  // At position 0 two chunks and 22 steps, at position 37 steps up to the grid, a chunk, steps.
  for (const int64_t first : {0, 37}) {
    std::vector<float> state(static_cast<size_t>(operands.state_count()), 0.0F);
    auto out = poisoned(operands.tokens * operands.out_width());
    operands.run(ops, 0, operands.tokens, first, state, out);
    EXPECT_LT(relative_error(out, want), 2e-5) << "first position " << first;
  }
}

TEST(DeltaNet, AnySplitGivesNearlyTheSameAndSplitsOnTheGridTheSameBits) {
  RandomData random;
  base::WorkerPool pool(3);
  HostOps ops(pool, false);
  const Operands operands(random, 192);
  const auto run = [&](const std::vector<int64_t>& borders) {
    std::vector<float> state(static_cast<size_t>(operands.state_count()), 0.0F);
    auto out = poisoned(operands.tokens * operands.out_width());
    for (size_t i = 0; i + 1 < borders.size(); ++i) operands.run(ops, borders[i], borders[i + 1], 0, state, out);
    return out;
  };
  const auto whole = run({0, 192});
  EXPECT_EQ(run({0, 64, 128, 192}), whole);
  const auto ragged = run({0, 1, 50, 130, 131, 192});
  EXPECT_LT(relative_error(ragged, {whole.begin(), whole.end()}), 2e-5);
}

}  // namespace
}  // namespace tandem::ops::host
