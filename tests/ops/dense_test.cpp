#include <cmath>
#include <gtest/gtest.h>

#include "ops/host/host_ops.h"
#include "tests/ops/columns.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::host {
namespace {

class DenseTest : public testing::Test {
 protected:
  base::WorkerPool pool_{2};
  HostOps ops_{pool_, false};
  RandomData random_;
};

TEST_F(DenseTest, LinearIsTheMatrixProduct) {
  const int64_t tokens = 7;
  const int64_t inputs = 272;
  const int64_t rows = 37;
  const auto x = random_.normal(tokens * inputs);
  const auto w = random_.normal_bf16(rows * inputs);
  auto y = poisoned(tokens * rows);
  ops_.linear(x.data(), tokens, {w.data(), WeightFormat::kBF16, rows, inputs}, false, y.data());
  std::vector<double> want;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < rows; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < inputs; ++k) {
        sum += static_cast<double>(x[static_cast<size_t>(t * inputs + k)]) *
               numeric::bf16_to_float(w[static_cast<size_t>(n * inputs + k)]);
      }
      want.push_back(sum);
    }
  }
  EXPECT_LT(relative_error(y, want), 1e-6);
}

TEST_F(DenseTest, HalvesAreTheSumsOverTheTwoHalvesOfTheInputs) {
  const int64_t inputs = 64;
  const auto x = random_.normal(inputs);
  const auto w = random_.normal_bf16(inputs);
  float lower = NAN;
  float upper = NAN;
  ops_.linear_halves(x.data(), 1, {w.data(), WeightFormat::kBF16, 1, inputs}, &lower, &upper);
  double want[2] = {};
  for (int64_t k = 0; k < inputs; ++k) {
    want[k / 32] += static_cast<double>(x[static_cast<size_t>(k)]) * numeric::bf16_to_float(w[static_cast<size_t>(k)]);
  }
  EXPECT_NEAR(lower, want[0], 1e-4);
  EXPECT_NEAR(upper, want[1], 1e-4);
}

TEST_F(DenseTest, RoundedInputsAreBf16AndExactOnesAreNot) {
  HostOps rounding(pool_, true);
  const float x[2] = {1.0F + 1.0F / 512, 0.0F};
  const float w[2] = {1.0F, 0.0F};
  float y = NAN;
  rounding.linear(x, 1, {w, WeightFormat::kF32, 1, 2}, false, &y);
  EXPECT_EQ(y, 1.0F);
  rounding.linear(x, 1, {w, WeightFormat::kF32, 1, 2}, true, &y);
  EXPECT_EQ(y, x[0]);
}

TEST_F(DenseTest, RmsNormIsZeroCentredAndGrouped) {
  const int64_t tokens = 3;
  const int64_t groups = 4;
  const int64_t width = 48;
  const auto x = random_.normal(tokens * groups * width, 3.0F);
  const auto w = random_.normal(groups * width, 0.1F);
  auto y = poisoned(tokens * groups * width);
  ops_.rms_norm(x.data(), tokens, groups, width, w.data(), 1e-6F, y.data());
  std::vector<double> want(y.size());
  for (int64_t g = 0; g < tokens * groups; ++g) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += std::pow(x[static_cast<size_t>(g * width + i)], 2);
    for (int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<size_t>(g * width + i);
      want[at] = x[at] / std::sqrt(squares / width + 1e-6) * (1 + w[static_cast<size_t>(g % groups * width + i)]);
    }
  }
  EXPECT_LT(relative_error(y, want), 1e-6);
}

// One stream's worth of the formula in model terms, over any split of the tokens.
TEST_F(DenseTest, CausalConvCarriesItsHistoryOverAnySplit) {
  const int64_t channels = 32;
  const int64_t tokens = 40;
  for (const int64_t dilation : {1, 3}) {
    const int64_t kernel = 4;
    const auto x = random_.normal(tokens * channels);
    const auto w = random_.normal(kernel * channels);
    std::vector<double> want;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < kernel; ++j) {
          const int64_t at = t - (kernel - 1 - j) * dilation;
          if (at >= 0)
            sum += static_cast<double>(w[static_cast<size_t>(j * channels + c)]) *
                   x[static_cast<size_t>(at * channels + c)];
        }
        want.push_back(sum / (1 + std::exp(-sum)));
      }
    }
    std::vector<float> history(static_cast<size_t>((kernel - 1) * dilation * channels), 0.0F);
    auto y = poisoned(tokens * channels);
    for (int64_t t = 0; t < tokens;) {
      const int64_t count = std::min(tokens - t, random_.between(1, 12));
      ops_.causal_conv(OneRun(t, count, history.data(), nullptr).columns(), x.data() + t * channels, channels, w.data(),
                       kernel, dilation, 0, y.data() + t * channels);
      t += count;
    }
    EXPECT_LT(relative_error(y, want), 1e-6) << "dilation " << dilation;
  }
}

TEST_F(DenseTest, HyperMixFollowsItsFormula) {
  const int64_t streams = 4;
  const int64_t hidden = 32;
  const int64_t width = streams * hidden;
  const int64_t lowrank = 16;
  const auto state = random_.normal(width);
  const auto norm = random_.normal(width, 0.1F);
  const auto down = random_.normal(lowrank * width, 0.2F);
  const auto up = random_.normal(width * lowrank, 0.5F);
  const auto inject = random_.normal(streams * width, 0.2F);
  const HyperWeights w{norm.data(),
                       {down.data(), WeightFormat::kF32, lowrank, width},
                       {up.data(), WeightFormat::kF32, width, lowrank},
                       {inject.data(), WeightFormat::kF32, streams, width}};
  auto x = poisoned(hidden);
  auto injection = poisoned(streams);
  ops_.hyper_mix(w, state.data(), 1, streams, hidden, 1e-6F, x.data(), injection.data());

  const auto at = [](const std::vector<float>& v, int64_t i) { return static_cast<double>(v[static_cast<size_t>(i)]); };
  std::vector<double> xn(static_cast<size_t>(width));
  for (int64_t s = 0; s < streams; ++s) {
    double squares = 0;
    for (int64_t i = 0; i < hidden; ++i) squares += at(state, s * hidden + i) * at(state, s * hidden + i);
    for (int64_t i = s * hidden; i < (s + 1) * hidden; ++i) {
      xn[static_cast<size_t>(i)] = at(state, i) / std::sqrt(squares / hidden + 1e-6) * (1 + at(norm, i));
    }
  }
  std::vector<double> want_x(static_cast<size_t>(hidden), 0.0);
  std::vector<double> low(static_cast<size_t>(lowrank));
  for (int64_t r = 0; r < lowrank; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += at(down, r * width + i) * xn[static_cast<size_t>(i)];
    low[static_cast<size_t>(r)] = sum / 4 / (1 + std::exp(-sum / 4));
  }
  for (int64_t i = 0; i < width; ++i) {
    double sum = 0;
    for (int64_t r = 0; r < lowrank; ++r) sum += at(up, i * lowrank + r) * low[static_cast<size_t>(r)];
    want_x[static_cast<size_t>(i % hidden)] += xn[static_cast<size_t>(i)] / (1 + std::exp(-sum)) / 4;
  }
  std::vector<double> want_injection;
  for (int64_t s = 0; s < streams; ++s) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += at(inject, s * width + i) * xn[static_cast<size_t>(i)];
    want_injection.push_back(2 / (1 + std::exp(-sum / 4)));
  }
  EXPECT_LT(relative_error(x, want_x), 2e-6);
  EXPECT_LT(relative_error(injection, want_injection), 2e-6);
}

}  // namespace
}  // namespace tandem::ops::host
