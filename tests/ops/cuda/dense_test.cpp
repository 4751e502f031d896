// Dense products and embeddings on a card against the scalar definition (src/numeric), in every way that a product can
// take. Tolerances are those that ops/cuda/dense.h states, relative to the sum of |x w|.
#include "ops/cuda/dense.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>

#include "tests/ops/cuda/dense_card.h"
#include "tests/ops/cuda/skip_without_card.h"
#include "tests/ops/quantised_matrix.h"

namespace tandem::ops::cuda {
namespace {

constexpr int64_t kCanaries = 64;
constexpr float kCanary = -12345.0F;
constexpr int64_t kScratchBytes = int64_t{256} << 20;

enum class Way { kChosen, kExact, kFew, kTiles, kLibrary };

DenseCard& card() {
  static DenseCard only(kScratchBytes);
  return only;
}

// BF16 and FP32 beside the formats that MatrixMaker knows.
QuantisedMatrix make_matrix(RandomData& random, WeightFormat format, int64_t rows, int64_t inputs) {
  if (format != WeightFormat::kBF16 && format != WeightFormat::kF32) {
    return MatrixMaker(random).make(format, rows, inputs);
  }
  QuantisedMatrix m;
  m.weight.format = format;
  m.weight.rows = rows;
  m.weight.inputs = inputs;
  m.row_factor.assign(static_cast<size_t>(rows), 1.0F);
  m.decoded = random.normal(rows * inputs);
  m.data.resize(m.decoded.size() * (format == WeightFormat::kF32 ? 4 : 2));
  for (size_t i = 0; i < m.decoded.size(); ++i) {
    if (format == WeightFormat::kF32) {
      std::memcpy(m.data.data() + 4 * i, &m.decoded[i], 4);
    } else {
      const uint16_t bits = numeric::bf16_from_float(m.decoded[i]);
      std::memcpy(m.data.data() + 2 * i, &bits, 2);
      m.decoded[i] = numeric::bf16_to_float(bits);
    }
  }
  return m;
}

struct Outputs {
  std::vector<float> y, upper;
};

class CudaDense : public testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override { SKIP_WITHOUT_A_CARD(); }

  // Inputs that the format can have: any, or multiples of 16.
  int64_t draw_inputs(int64_t most) {
    const bool blocks = GetParam() >= WeightFormat::kNvfp4;
    return blocks ? 16 * random_.between(1, most / 16) : random_.between(2, most);
  }

  Outputs run(Way way, const CardWeight& w, const std::vector<float>& x, int64_t tokens, bool halves, bool round) {
    const device::Buffer inputs = card().upload(std::span(x));
    const int64_t count = tokens * w.weight().rows;
    std::vector<float> fresh = poisoned(count);
    fresh.resize(static_cast<size_t>(count + kCanaries), kCanary);
    device::Buffer y = card().upload(std::span<const float>(fresh));
    device::Buffer upper = card().upload(std::span<const float>(fresh));
    launch(way, {.x = inputs.as<float>(),
                 .tokens = tokens,
                 .w = w.weight(),
                 .round = round,
                 .y = y.as<float>(),
                 .upper = halves ? upper.as<float>() : nullptr});
    return {checked(y), halves ? checked(upper) : std::vector<float>()};
  }

  static void launch(Way way, const dense::Product& product) {
    Context context{.stream = card().context().stream,
                    .scratch = card().context().scratch,
                    .multiprocessors = card().context().multiprocessors,
                    .capability = card().context().capability,
                    .round_inputs = product.round};
    switch (way) {
      case Way::kChosen:
        if (product.upper != nullptr) {
          return linear_halves(context, product.x, product.tokens, product.w, product.y, product.upper);
        }
        return linear(context, product.x, product.tokens, product.w, false, product.y);
      case Way::kExact:
        return dense::exact_linear(context, product);
      case Way::kFew:
        ASSERT_TRUE(dense::few_columns_serve(product));
        return dense::few_columns_linear(context, {&product, 1});
      case Way::kTiles:
      case Way::kLibrary:
        ASSERT_TRUE(dense::many_columns_serve(product));
        return dense::many_columns_linear(context, product, way == Way::kLibrary);
    }
  }

  static std::vector<float> checked(const device::Buffer& buffer) {
    std::vector<float> values = card().download<float>(buffer);
    for (size_t i = values.size() - kCanaries; i < values.size(); ++i) EXPECT_EQ(values[i], kCanary) << "overrun";
    values.resize(values.size() - kCanaries);
    return values;
  }

  // `tolerance` of the sum of |x w|.
  static void expect_sums(const std::vector<float>& got, const QuantisedMatrix& m, std::vector<float> x, int64_t tokens,
                          int64_t begin, int64_t end, bool round, double tolerance, const std::string& what) {
    if (round) {
      for (float& value : x) value = numeric::bf16_to_float(numeric::bf16_from_float(value));
    }
    const int64_t inputs = m.weight.inputs;
    ASSERT_EQ(static_cast<int64_t>(got.size()), tokens * m.weight.rows);
    double worst = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = 0; r < m.weight.rows; ++r) {
        double sum = 0;
        double size = 0;
        for (int64_t k = begin; k < end; ++k) {
          const double term = static_cast<double>(x[static_cast<size_t>(t * inputs + k)]) *
                              m.decoded[static_cast<size_t>(r * inputs + k)];
          sum += term;
          size += std::fabs(term);
        }
        const double factor =
            m.divides ? 1.0 / m.row_factor[static_cast<size_t>(r)] : m.row_factor[static_cast<size_t>(r)];
        const double error = std::fabs(got[static_cast<size_t>(t * m.weight.rows + r)] - sum * factor);
        const double share = error / std::max(size * std::fabs(factor), 1e-30);
        if (!(share <= worst)) worst = share;
        ASSERT_LE(share, tolerance) << what
                                    << fmt::format(", column {}, row {}: {} for {}", t, r,
                                                   got[static_cast<size_t>(t * m.weight.rows + r)], sum * factor);
      }
    }
    if (std::getenv("TANDEM_TEST_FIGURES") != nullptr) {
      fmt::print("  {}: worst {:.2e} of {:.2e} allowed\n", what, worst, tolerance);
    }
  }

  double tolerance_of(Way way, int64_t inputs, int64_t tokens) const {
    const double unit = 0x1p-24;
    const double rounded_scales =
        GetParam() == WeightFormat::kFp8Block || GetParam() >= WeightFormat::kInt3 ? 0x1p-8 : 0.0;
    switch (way) {
      case Way::kFew:
        return 0x1p-18;
      case Way::kTiles:
      case Way::kLibrary:
        return (static_cast<double>(inputs) / 16 + 32) * 2 * unit + rounded_scales;
      case Way::kExact:
        break;
      case Way::kChosen:
        return tokens > 8 ? tolerance_of(Way::kTiles, inputs, tokens) + tolerance_of(Way::kExact, inputs, tokens)
                          : 0x1p-18;
    }
    return tokens > 8 ? static_cast<double>(inputs + 4) * unit : (static_cast<double>(inputs) / 1024 + 20) * 4 * unit;
  }

  void check_product(Way way, int64_t rows, int64_t inputs, int64_t tokens, bool halves, bool round) {
    if (random_.between(0, 1) == 1) rows = rows_for_few(rows);
    const QuantisedMatrix m = make_matrix(random_, GetParam(), rows, inputs);
    const CardWeight w(card(), m.weight, m.data, m.scales, way == Way::kFew || random_.between(0, 1) == 1);
    const std::vector<float> x = random_.normal(tokens * inputs);
    const Outputs out = run(way, w, x, tokens, halves, round);
    const std::string what = fmt::format("way {}, [{}, {}], {} columns, halves {}, rounded {}, group {}",
                                         static_cast<int>(way), rows, inputs, tokens, halves, round, m.weight.group);
    const int64_t middle = halves ? inputs / 2 : inputs;
    const double tolerance = tolerance_of(way, inputs, tokens);
    expect_sums(out.y, m, x, tokens, 0, middle, round, tolerance, what);
    if (halves) expect_sums(out.upper, m, x, tokens, middle, inputs, round, tolerance, what + ", upper");
  }

  // A matrix that the way for few columns takes: MatrixMaker draws groups, which this way takes some of.
  QuantisedMatrix make_for_few(int64_t rows, int64_t inputs) {
    for (;;) {
      QuantisedMatrix m = make_matrix(random_, GetParam(), rows, inputs);
      Weight placed = m.weight;
      placed.data = nullptr;
      placed.scales = nullptr;
      placed.lane_order = can_arrange(placed);
      if (dense::few_columns_serve({.tokens = 1, .w = placed, .round = true})) return m;
    }
  }
  // Rows that a matrix in lanes' order has, where the way for few columns wants that.
  static int64_t rows_for_few(int64_t rows) {
    const bool tiles =
        GetParam() == WeightFormat::kNvfp4 || GetParam() == WeightFormat::kInt3 || GetParam() == WeightFormat::kInt4;
    return tiles ? (rows + 15) / 16 * 16 : rows;
  }
  bool few_takes() const { return GetParam() != WeightFormat::kF32 && GetParam() != WeightFormat::kF16; }

  RandomData random_;
};

TEST_P(CudaDense, ExactProductsOfAnyShape) {
  for (int round = 0; round < 12; ++round) {
    const int64_t tokens = round % 2 == 0 ? random_.between(1, 8) : random_.between(9, 80);
    check_product(Way::kExact, random_.between(1, 150), draw_inputs(900), tokens, round % 3 == 0, round % 4 >= 2);
  }
}

TEST_P(CudaDense, FewColumnsOnTheTensorCores) {
  if (!few_takes()) GTEST_SKIP() << "this format takes the exact way";
  for (const int64_t units : {1, 2, 3, 8, 17, 40, 47}) {
    for (const bool halves : {false, true}) {
      const int64_t inputs = 128 * units;
      if (halves && units % 2 != 0) continue;
      const int64_t rows = rows_for_few(random_.between(1, units < 10 ? 300 : 70));
      const int64_t tokens = random_.between(1, 8);
      const QuantisedMatrix m = make_for_few(rows, inputs);
      const CardWeight w(card(), m.weight, m.data, m.scales);
      const std::vector<float> x = random_.normal(tokens * inputs);
      const Outputs out = run(Way::kFew, w, x, tokens, halves, true);
      const std::string what =
          fmt::format("few [{}, {}], {} columns, halves {}, group {}", rows, inputs, tokens, halves, m.weight.group);
      const int64_t middle = halves ? inputs / 2 : inputs;
      expect_sums(out.y, m, x, tokens, 0, middle, true, tolerance_of(Way::kFew, inputs, tokens), what);
      if (halves) {
        expect_sums(out.upper, m, x, tokens, middle, inputs, true, tolerance_of(Way::kFew, inputs, tokens), what);
      }
    }
  }
}

// Scales of NVFP4 have a sign, though published ones are positive.
TEST_P(CudaDense, ScalesOfNvfp4MayBeNegative) {
  if (GetParam() != WeightFormat::kNvfp4) GTEST_SKIP() << "another format";
  const int64_t rows = 48, inputs = 640;
  QuantisedMatrix m = make_for_few(rows, inputs);
  for (size_t block = 0; block < m.scales.size(); ++block) {
    if (random_.between(0, 1) == 0) continue;
    m.scales[block] |= std::byte{0x80};
    for (size_t i = 16 * block; i < 16 * block + 16; ++i) m.decoded[i] = -m.decoded[i];
  }
  const CardWeight w(card(), m.weight, m.data, m.scales);
  for (const Way way : {Way::kFew, Way::kExact, Way::kTiles}) {
    for (const int64_t tokens : {1, 2, 4, 8}) {
      const std::vector<float> x = random_.normal(tokens * inputs);
      expect_sums(run(way, w, x, tokens, false, true).y, m, x, tokens, 0, inputs, true,
                  tolerance_of(way, inputs, tokens), fmt::format("way {}", static_cast<int>(way)));
    }
  }
}

// More rows than one wave of blocks has, and more inputs than a block's warps hold at once.
TEST_P(CudaDense, LongAndTallMatricesOfFewColumns) {
  if (!few_takes()) GTEST_SKIP() << "this format takes the exact way";
  for (const auto& [least, inputs] : {std::pair<int64_t, int64_t>{9001, 128}, {33, 128 * 171}}) {
    const int64_t rows = rows_for_few(least);
    const QuantisedMatrix m = make_for_few(rows, inputs);
    const CardWeight w(card(), m.weight, m.data, m.scales);
    const std::vector<float> x = random_.normal(2 * inputs);
    const Outputs out = run(Way::kFew, w, x, 2, false, true);
    expect_sums(out.y, m, x, 2, 0, inputs, true, tolerance_of(Way::kFew, inputs, 2),
                fmt::format("few [{}, {}]", rows, inputs));
  }
}

// A pair of matrices in one launch has the sums of both alone.
TEST_P(CudaDense, PairsOfFewColumnsAreSwiGlu) {
  if (!few_takes()) GTEST_SKIP() << "this format takes the exact way";
  for (int round = 0; round < 6; ++round) {
    const int64_t rows = rows_for_few(round == 0 ? 9001 : random_.between(1, 150));
    const int64_t inputs = 128 * random_.between(1, round == 1 ? 171 : 21);
    const int64_t tokens = random_.between(1, 8);
    const QuantisedMatrix gate = make_for_few(rows, inputs);
    QuantisedMatrix up = make_for_few(rows, inputs);
    while (up.weight.group != gate.weight.group || up.weight.scale_type != gate.weight.scale_type) {
      up = make_for_few(rows, inputs);
    }
    const CardWeight gate_weight(card(), gate.weight, gate.data, gate.scales);
    const CardWeight up_weight(card(), up.weight, up.data, up.scales);
    const std::vector<float> x = random_.normal(tokens * inputs, 0.1F);
    const std::vector<float> g = run(Way::kFew, gate_weight, x, tokens, false, true).y;
    const std::vector<float> u = run(Way::kFew, up_weight, x, tokens, false, true).y;
    const device::Buffer on_card = card().upload(std::span(x));
    device::Buffer y = card().upload(std::span<const float>(poisoned(tokens * rows)));
    ASSERT_TRUE(
        swiglu(card().context(), on_card.as<float>(), tokens, gate_weight.weight(), up_weight.weight(), y.as<float>()));
    const std::vector<float> got = card().download<float>(y);
    for (size_t i = 0; i < g.size(); ++i) {
      const double want = g[i] / (1.0 + std::exp(-static_cast<double>(g[i]))) * u[i];
      ASSERT_NEAR(got[i], want, 2e-6 * std::fabs(want) + 1e-30) << i << " of [" << rows << ", " << inputs << "]";
    }
  }
}

TEST_P(CudaDense, ManyColumnsByTilesAndByTheLibrary) {
  if (!few_takes()) GTEST_SKIP() << "this format takes the exact way";
  for (const Way way : {Way::kTiles, Way::kLibrary}) {
    if (way == Way::kLibrary && !dense_library_loaded()) GTEST_SKIP() << "no cuBLASLt here: tiles alone were tested";
    for (int round = 0; round < 8; ++round) {
      const bool halves = round % 3 == 0;
      const int64_t inputs = 16 * random_.between(1, 60);
      check_product(way, random_.between(1, 300), inputs, random_.between(9, 200), halves, true);
    }
  }
}

// Both multiply the same BF16 numbers: they differ by the order of sums alone.
TEST_P(CudaDense, TilesAndLibraryAgree) {
  if (!few_takes()) GTEST_SKIP() << "this format takes the exact way";
  if (!dense_library_loaded()) GTEST_SKIP() << "no cuBLASLt here";
  const int64_t rows = 384, inputs = 1024, tokens = 130;
  const QuantisedMatrix m = make_matrix(random_, GetParam(), rows, inputs);
  const CardWeight w(card(), m.weight, m.data, m.scales);
  const std::vector<float> x = random_.normal(tokens * inputs);
  const Outputs tiles = run(Way::kTiles, w, x, tokens, false, true);
  const Outputs library = run(Way::kLibrary, w, x, tokens, false, true);
  EXPECT_LT(relative_error(tiles.y, {library.y.begin(), library.y.end()}), 1e-5);
  EXPECT_EQ(library.y, run(Way::kLibrary, w, x, tokens, false, true).y) << "two runs differ";
}

TEST_P(CudaDense, WhateverIsChosenIsTheProduct) {
  for (int round = 0; round < 12; ++round) {
    const int64_t tokens = round % 2 == 0 ? random_.between(1, 8) : random_.between(9, 40);
    const int64_t inputs = round % 3 == 0 ? 128 * random_.between(1, 6) : draw_inputs(700);
    check_product(Way::kChosen, random_.between(1, 100), inputs, tokens, round % 4 == 1, true);
  }
}

// The bits of a column in company equal those alone, at whatever place it stands.
TEST_P(CudaDense, FewColumnsDoNotDependOnTheirCompany) {
  for (const bool round : {true, false}) {
    for (const int64_t inputs : {int64_t{1280}, int64_t{16 * 37}}) {
      const int64_t rows = 80;
      const QuantisedMatrix m = make_matrix(random_, GetParam(), rows, inputs);
      const CardWeight w(card(), m.weight, m.data, m.scales);
      const std::vector<float> x = random_.normal(8 * inputs);
      std::vector<std::vector<float>> alone;
      for (int64_t c = 0; c < 8; ++c) {
        const std::vector<float> one(x.begin() + c * inputs, x.begin() + (c + 1) * inputs);
        alone.push_back(run(Way::kChosen, w, one, 1, false, round).y);
      }
      for (int64_t columns = 2; columns <= 8; ++columns) {
        const int64_t turn = random_.between(0, 7);
        std::vector<float> some;
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t from = (c + turn) % 8 * inputs;
          some.insert(some.end(), x.begin() + from, x.begin() + from + inputs);
        }
        const std::vector<float> y = run(Way::kChosen, w, some, columns, false, round).y;
        for (int64_t c = 0; c < columns; ++c) {
          for (int64_t r = 0; r < rows; ++r) {
            ASSERT_EQ(std::bit_cast<uint32_t>(y[static_cast<size_t>(c * rows + r)]),
                      std::bit_cast<uint32_t>(alone[static_cast<size_t>((c + turn) % 8)][static_cast<size_t>(r)]))
                << "column " << c << " of " << columns << ", row " << r << ", " << inputs << " inputs";
          }
        }
      }
    }
  }
}

TEST_P(CudaDense, EmbeddingsAreRowsBitForBit) {
  for (const bool shared : {false, true}) {
    for (const int64_t inputs : {draw_inputs(3000), int64_t{2560}}) {
      const int64_t rows = 48, copies = 3;
      const QuantisedMatrix m = make_matrix(random_, GetParam(), rows, inputs);
      const CardWeight w(card(), m.weight, m.data, m.scales, !shared);
      Weight table = w.weight();
      device::Buffer host;
      if (shared) {
        host = device::Buffer::shared(card().device(), static_cast<int64_t>(m.data.size()));
        std::memcpy(host.data(), m.data.data(), m.data.size());
        table.data = host.data();
      }
      const std::vector<int32_t> ids = {39, 0, 7, 7};
      const device::Buffer card_ids = card().upload(std::span(ids));
      auto fresh = poisoned(4 * copies * inputs);
      device::Buffer out = card().upload(std::span<const float>(fresh));
      embed(card().context(), table, card_ids.as<int32_t>(), 4, copies, out.as<float>());
      const auto got = card().download<float>(out);
      for (size_t i = 0; i < got.size(); ++i) {
        const int64_t row = ids[i / static_cast<size_t>(copies * inputs)];
        const float want =
            m.finish(m.decoded[static_cast<size_t>(row * inputs) + i % static_cast<size_t>(inputs)], row);
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want)) << "element " << i;
      }
    }
  }
}

// What a plan counts suffices, and planning launches nothing.
TEST_P(CudaDense, PlansCountTheScratch) {
  const int64_t rows = 704, inputs = 512, tokens = 60;
  const QuantisedMatrix m = make_matrix(random_, GetParam(), rows, inputs);
  const CardWeight w(card(), m.weight, m.data, m.scales);
  Scratch plan = Scratch::planning();
  const Context planning{.scratch = plan};
  linear(planning, nullptr, tokens, w.weight(), false, nullptr);
  const std::vector<float> x = random_.normal(tokens * inputs);
  const device::Buffer inputs_there = card().upload(std::span(x));
  device::Buffer y(card().device(), tokens * rows * 4);
  device::Buffer memory(card().device(), plan.most());
  Scratch scratch(memory.data(), plan.most());
  Context context{.stream = card().context().stream, .scratch = scratch};
  linear(context, inputs_there.as<float>(), tokens, w.weight(), false, y.as<float>());
  expect_sums(card().download<float>(y), m, x, tokens, 0, inputs, true, tolerance_of(Way::kChosen, inputs, tokens),
              "planned");
}

std::string name_of(const testing::TestParamInfo<WeightFormat>& format) {
  static constexpr const char* kNames[] = {"Bf16",     "F32",   "F16",  "Fp8Row", "Fp8Tensor",
                                           "Fp8Block", "Nvfp4", "Int3", "Int4",   "Int8"};
  return kNames[static_cast<size_t>(format.param)];
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaDense,
                         testing::Values(WeightFormat::kBF16, WeightFormat::kF32, WeightFormat::kF16,
                                         WeightFormat::kFp8Row, WeightFormat::kFp8Tensor, WeightFormat::kFp8Block,
                                         WeightFormat::kNvfp4, WeightFormat::kInt3, WeightFormat::kInt4,
                                         WeightFormat::kInt8),
                         name_of);

}  // namespace
}  // namespace tandem::ops::cuda
