#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>

#include "numeric/expert_reference.h"
#include "numeric/fp8_block.h"
#include "numeric/fp8_units.h"
#include "ops/host/host_ops.h"
#include "tests/ops/columns.h"
#include "tests/ops/kernel_sets.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::host {
namespace {

constexpr int64_t kExperts = 5;
constexpr int64_t kTopK = 3;

// Random NVFP4 experts, as published planes and as records.
struct Nvfp4Experts {
  int64_t inner, hidden;
  std::vector<uint8_t> codes[kExperts][3], scales[kExperts][3];
  std::vector<float> scalars;
  int64_t scalars_each = 6;
  std::vector<std::byte> records;
  int64_t record_bytes;

  Nvfp4Experts(RandomData& random, int64_t inner_size, int64_t hidden_size, bool extreme)
      : inner(inner_size), hidden(hidden_size), scalars(kExperts * 6) {
    const int64_t matrix_bytes = numeric::nvfp4_record_bytes(inner, hidden);
    record_bytes = (3 * matrix_bytes + 4095) / 4096 * 4096;
    records.resize(static_cast<size_t>(kExperts * record_bytes), std::byte{0xA5});
    for (int64_t e = 0; e < kExperts; ++e) {
      for (int m = 0; m < 3; ++m) {
        const int64_t rows = m == 2 ? hidden : inner;
        const int64_t inputs = m == 2 ? inner : hidden;
        auto& c = codes[e][m];
        auto& s = scales[e][m];
        for (int64_t i = 0; i < rows * inputs / 2; ++i) c.push_back(static_cast<uint8_t>(random.between(0, 255)));
        for (int64_t i = 0; i < rows * inputs / 16; ++i) {
          s.push_back(static_cast<uint8_t>(extreme ? random.between(0, 0x7E) : random.between(0x20, 0x48)));
        }
        numeric::pack_units(c, s, rows, inputs,
                            std::span(records).subspan(static_cast<size_t>(e * record_bytes + m * matrix_bytes),
                                                       static_cast<size_t>(matrix_bytes)));
        scalars[static_cast<size_t>(e * 6 + m)] = std::exp2(static_cast<float>(random.between(-14, -10)));
        scalars[static_cast<size_t>(e * 6 + 3 + m)] = std::exp2(static_cast<float>(random.between(-12, -9))) * 1.1F;
      }
    }
  }
  // As where the checkpoint has no input scales.
  void drop_input_scales() {
    std::vector<float> weight_scales;
    for (int64_t e = 0; e < kExperts; ++e) {
      weight_scales.insert(weight_scales.end(), scalars.begin() + e * 6, scalars.begin() + e * 6 + 3);
    }
    scalars = weight_scales;
    scalars_each = 3;
  }
  ExpertTable table() const {
    ExpertTable table;
    table.records = records.data();
    table.experts = kExperts;
    table.inner = inner;
    table.hidden = hidden;
    table.scalars = scalars.data();
    table.scalars_each = scalars_each;
    table.place({ExpertFormat::kNvfp4, ExpertFormat::kNvfp4, ExpertFormat::kNvfp4});
    return table;
  }
  numeric::Nvfp4Matrix matrix(int64_t e, int m) const {
    return {codes[e][m],
            scales[e][m],
            m == 2 ? hidden : inner,
            m == 2 ? inner : hidden,
            {scalars[static_cast<size_t>(e * scalars_each + m)]},
            scalars_each == 3 ? std::nullopt
                              : std::optional(numeric::Nvfp4Scale{scalars[static_cast<size_t>(e * 6 + 3 + m)]})};
  }
};

// Distinct random experts for each token, with weights of sum 1.
void route(RandomData& random, int64_t tokens, std::vector<int32_t>& ids, std::vector<float>& weights) {
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> all = {0, 1, 2, 3, 4};
    std::shuffle(all.begin(), all.end(), random.engine());
    ids.insert(ids.end(), all.begin(), all.begin() + kTopK);
    weights.insert(weights.end(), {0.5F, 0.3F, 0.2F});
  }
}

class ExpertsTest : public testing::Test {
 protected:
  int64_t run(HostOps& ops, const ExpertTable& table, const std::vector<float>& x, int64_t tokens, bool quantise) {
    lower_ = poisoned(tokens * table.hidden);
    upper_ = lower_;
    return first_faulty(ops, {.x = x.data(),
                              .tokens = tokens,
                              .top_k = kTopK,
                              .ids = ids_.data(),
                              .weights = weights_.data(),
                              .table = table,
                              .quantise_activations = quantise,
                              .lower = lower_.data(),
                              .upper = upper_.data()});
  }

  base::WorkerPool pool_{2};
  HostOps ops_{pool_, false};
  RandomData random_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_, lower_, upper_;
};

TEST_F(ExpertsTest, FourBitActivationsGiveTheBitsOfTheDefinitionOnEveryInstructionSet) {
  for (const int round : {0, 1, 2, 3}) {
    const bool extreme = round % 2 == 1;
    Nvfp4Experts experts(random_, 64, 128, extreme);
    if (round >= 2) experts.drop_input_scales();
    const int64_t tokens = 9;
    auto x = random_.normal(tokens * experts.hidden);
    std::fill_n(x.begin() + experts.hidden, experts.hidden, 0.0F);  // a column of zeros
    for (int64_t i = 2 * experts.hidden; i < 3 * experts.hidden; ++i) x[static_cast<size_t>(i)] *= 1e-9F;
    ids_.clear();
    weights_.clear();
    route(random_, tokens, ids_, weights_);
    std::vector<float> want;
    bool fault = false;
    for (int64_t t = 0; t < tokens; ++t) {
      numeric::ExpertSum sum(experts.hidden);
      for (int64_t k = 0; k < kTopK; ++k) {
        const int64_t e = ids_[static_cast<size_t>(t * kTopK + k)];
        std::vector<float> y(static_cast<size_t>(experts.hidden));
        ASSERT_TRUE(numeric::nvfp4_expert(
            experts.matrix(e, 0), experts.matrix(e, 1), experts.matrix(e, 2),
            std::span(x).subspan(static_cast<size_t>(t * experts.hidden), static_cast<size_t>(experts.hidden)), y));
        sum.add(e, weights_[static_cast<size_t>(t * kTopK + k)], y);
      }
      std::vector<float> row(static_cast<size_t>(experts.hidden));
      sum.finish(row);
      fault = fault || sum.fault();
      want.insert(want.end(), row.begin(), row.end());
    }
    for (const Kernels* set : kernel_sets()) {
      HostOps ops(pool_, false, *set);
      EXPECT_EQ(run(ops, experts.table(), x, tokens, true) >= 0, fault) << set->name;
      if (fault) continue;
      for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(lower_[i] + upper_[i], want[i]) << set->name << " " << i;
    }
  }
}

TEST_F(ExpertsTest, ColumnsDoNotDependOnTheirCompany) {
  Nvfp4Experts experts(random_, 64, 128, false);
  const int64_t tokens = 13;
  const auto x = random_.normal(tokens * experts.hidden);
  route(random_, tokens, ids_, weights_);
  for (const int round : {0, 1, 2}) {
    const bool quantise = round > 0;
    if (round == 2) experts.drop_input_scales();
    ASSERT_EQ(run(ops_, experts.table(), x, tokens, quantise), -1);
    const auto all = lower_;
    const auto ids = ids_;
    for (int64_t t = 0; t < tokens; ++t) {
      ids_.assign(ids.begin() + t * kTopK, ids.begin() + (t + 1) * kTopK);
      run(ops_, experts.table(), {x.begin() + t * experts.hidden, x.begin() + (t + 1) * experts.hidden}, 1, quantise);
      ASSERT_TRUE(std::equal(lower_.begin(), lower_.end(), all.begin() + t * experts.hidden)) << t;
    }
    ids_ = ids;
  }
}

// Decoded weights of any format as doubles, for the plain formula.
std::vector<double> plain_expert(const std::vector<double> (&m)[3], const float* x, int64_t inner, int64_t hidden) {
  std::vector<double> h;
  for (int64_t r = 0; r < inner; ++r) {
    double g = 0;
    double u = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      g += m[0][static_cast<size_t>(r * hidden + i)] * x[i];
      u += m[1][static_cast<size_t>(r * hidden + i)] * x[i];
    }
    h.push_back(g / (1 + std::exp(-g)) * u);
  }
  std::vector<double> y(static_cast<size_t>(hidden), 0.0);
  for (int64_t r = 0; r < hidden; ++r) {
    for (int64_t i = 0; i < inner; ++i)
      y[static_cast<size_t>(r)] += m[2][static_cast<size_t>(r * inner + i)] * h[static_cast<size_t>(i)];
  }
  return y;
}

TEST_F(ExpertsTest, WeightOnlyNvfp4IsThePlainFormula) {
  const Nvfp4Experts experts(random_, 64, 128, false);
  // Large enough that the sum's fixed point of 2^-32 does not count.
  const auto x = random_.normal(experts.hidden, 1000.0F);
  ids_ = {4, 1, 2};
  weights_ = {0.5F, 0.3F, 0.2F};
  ASSERT_EQ(run(ops_, experts.table(), x, 1, false), -1);
  std::vector<double> want(static_cast<size_t>(experts.hidden), 0.0);
  for (size_t k = 0; k < kTopK; ++k) {
    std::vector<double> m[3];
    for (int which = 0; which < 3; ++which) {
      const auto matrix = experts.matrix(ids_[k], which);
      std::vector<float> decoded(static_cast<size_t>(matrix.rows * matrix.inputs));
      numeric::nvfp4_decode(matrix.codes, matrix.scales, matrix.rows, matrix.inputs, matrix.weight_scale, decoded);
      m[which].assign(decoded.begin(), decoded.end());
    }
    const auto y = plain_expert(m, x.data(), experts.inner, experts.hidden);
    for (size_t i = 0; i < want.size(); ++i) want[i] += weights_[k] * y[i];
  }
  std::vector<float> sum(lower_.size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = lower_[i] + upper_[i];
  EXPECT_LT(relative_error(sum, want), 1e-5);
}

TEST_F(ExpertsTest, Bf16AndFp8RecordsAreThePlainFormula) {
  const int64_t inner = 32;
  const int64_t hidden = 160;  // more than one 128-block, the second not whole
  for (const bool fp8 : {false, true}) {
    const int64_t elements = inner * hidden;
    const int64_t grid = 1 * 2;
    const int64_t record_bytes = fp8 ? 16384 : 32768;
    std::vector<std::byte> records(static_cast<size_t>(kExperts * record_bytes));
    std::vector<double> m[kExperts][3];
    for (int64_t e = 0; e < kExperts; ++e) {
      std::byte* record = records.data() + e * record_bytes;
      for (int which = 0; which < 3; ++which) {
        const int64_t inputs = which == 2 ? inner : hidden;
        const auto scales = random_.normal_bf16(grid, 0.01F);
        if (fp8) std::memcpy(record + 3 * elements + which * grid * 2, scales.data(), static_cast<size_t>(grid * 2));
        std::vector<uint8_t> codes;
        const auto weights = random_.normal_bf16(elements, 0.2F);
        if (!fp8) std::memcpy(record + which * elements * 2, weights.data(), static_cast<size_t>(elements * 2));
        for (int64_t i = 0; i < elements; ++i) {
          if (!fp8) {
            m[e][which].push_back(numeric::bf16_to_float(weights[static_cast<size_t>(i)]));
            continue;
          }
          const auto code = static_cast<uint8_t>(random_.between(0, 0x7E) | (random_.between(0, 1) << 7));
          codes.push_back(code);
          const int64_t columns = (inputs + 127) / 128;
          const int64_t block = i / inputs / 128 * columns + i % inputs / 128;
          m[e][which].push_back(static_cast<double>(numeric::e4m3_to_float(code)) *
                                numeric::bf16_to_float(scales[static_cast<size_t>(block)]));
        }
        if (!fp8) continue;
        numeric::pack_fp8_units(codes, which == 2 ? hidden : inner, inputs,
                                {record + which * elements, static_cast<size_t>(elements)});
      }
    }
    ExpertTable table;
    table.records = records.data();
    table.experts = kExperts;
    table.inner = inner;
    table.hidden = hidden;
    const ExpertFormat format = fp8 ? ExpertFormat::kFp8Block : ExpertFormat::kBF16;
    table.place({format, format, format});
    ASSERT_EQ(table.record.bytes, record_bytes);
    const auto x = random_.normal(hidden);
    ids_ = {0, 3, 2};
    weights_ = {0.5F, 0.3F, 0.2F};
    ASSERT_EQ(run(ops_, table, x, 1, false), -1);
    std::vector<double> want(static_cast<size_t>(hidden), 0.0);
    for (size_t k = 0; k < kTopK; ++k) {
      const auto y = plain_expert(m[ids_[k]], x.data(), inner, hidden);
      for (size_t i = 0; i < want.size(); ++i) want[i] += weights_[k] * y[i];
    }
    std::vector<float> sum(lower_.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = lower_[i] + upper_[i];
    EXPECT_LT(relative_error(sum, want), 1e-5) << (fp8 ? "fp8" : "bf16");
  }
}

TEST_F(ExpertsTest, NamesTheFirstColumnThatIsNotFinite) {
  Nvfp4Experts experts(random_, 64, 128, false);
  for (const int round : {0, 1, 2}) {
    const bool quantise = round > 0;
    if (round == 2) experts.drop_input_scales();
    ids_.clear();
    weights_.clear();
    route(random_, 4, ids_, weights_);
    auto x = random_.normal(4 * experts.hidden);
    x[static_cast<size_t>(2 * experts.hidden + 5)] = std::numeric_limits<float>::quiet_NaN();
    x[static_cast<size_t>(3 * experts.hidden + 1)] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(run(ops_, experts.table(), x, 4, quantise), 2);
  }
}

TEST_F(ExpertsTest, RouterTakesTheBestAndTheLowerIdAmongEquals) {
  const int64_t hidden = 16;
  std::vector<float> w(6 * hidden, 0.0F);
  const float logits[6] = {1, 3, 2, 3, 0, 2};
  for (int e = 0; e < 6; ++e) w[static_cast<size_t>(e * hidden)] = logits[e];
  std::vector<float> x(static_cast<size_t>(hidden), 0.0F);
  x[0] = 1;
  int32_t ids[3];
  float weights[3];
  ops_.router(x.data(), 1, {w.data(), WeightFormat::kF32, 6, hidden}, 3, ids, weights);
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 3), (std::vector<int32_t>{1, 3, 2}));
  const double sum = 2 * std::exp(3.0) + std::exp(2.0);
  EXPECT_NEAR(weights[0], std::exp(3.0) / sum, 1e-6);
  EXPECT_NEAR(weights[2], std::exp(2.0) / sum, 1e-6);
}

}  // namespace
}  // namespace tandem::ops::host
