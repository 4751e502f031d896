// Products with quantised weights: the same bits as the scalar definition in the order of the lanes, whatever the
// instruction set, the number of columns, the range of rows and the number of threads.
#include <bit>
#include <gtest/gtest.h>

#include "ops/host/host_ops.h"
#include "tests/ops/kernel_sets.h"
#include "tests/ops/quantised_matrix.h"

namespace tandem::ops::host {
namespace {

// Sixteen lanes along the inputs, one FMA each, then the tree of reduce_add.
float lane_sum(const float* x, const float* w, int64_t count) {
  float lanes[16] = {};
  for (int64_t k = 0; k < count; ++k) lanes[k % 16] = std::fma(w[k], x[k], lanes[k % 16]);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

class Quantised : public testing::TestWithParam<WeightFormat> {
 protected:
  // Inputs that the format can have: any, or multiples of 16.
  int64_t draw_inputs() {
    const bool blocks = GetParam() >= WeightFormat::kNvfp4;
    return blocks ? 16 * random_.between(1, 40) : random_.between(1, 640);
  }
  RandomData random_;
  MatrixMaker maker_{random_};
};

void expect_bits(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << what << ", element " << i << ": " << got[i] << " for " << want[i];
  }
}

TEST_P(Quantised, ProductsAreTheScalarDefinitionBitForBit) {
  for (int round = 0; round < 40; ++round) {
    const int64_t inputs = draw_inputs();
    const int64_t rows = random_.between(1, 50);
    const int64_t columns = random_.between(1, 20);
    const QuantisedMatrix m = maker_.make(GetParam(), rows, inputs);
    const auto x = random_.normal(inputs * columns);
    const int64_t begin = random_.between(0, rows - 1);
    const int64_t end = random_.between(begin + 1, rows);
    for (const bool halves : {false, true}) {
      const int64_t middle = halves ? inputs / 2 : inputs;
      auto want = poisoned(rows * columns);
      auto want_upper = want;
      for (int64_t c = 0; c < columns; ++c) {
        for (int64_t r = begin; r < end; ++r) {
          const float* row = m.decoded.data() + r * inputs;
          const auto at = static_cast<size_t>(c * rows + r);
          want[at] = m.finish(lane_sum(x.data() + c * inputs, row, middle), r);
          if (halves)
            want_upper[at] = m.finish(lane_sum(x.data() + c * inputs + middle, row + middle, inputs - middle), r);
        }
      }
      for (const Kernels* kernels : kernel_sets()) {
        auto y = poisoned(rows * columns);
        auto upper = y;
        std::vector<float> scratch(static_cast<size_t>(dense_scratch_floats(inputs)));
        kernels->linear(x.data(), inputs, columns, m.weight, begin, end, y.data(), halves ? upper.data() : nullptr,
                        rows, scratch.data());
        const std::string what =
            fmt::format("{}: [{}, {}], {} columns, halves {}", kernels->name, rows, inputs, columns, halves);
        expect_bits(y, want, what);
        expect_bits(upper, want_upper, what);
      }
    }
  }
}

TEST_P(Quantised, RowsAreDecodedWithAllTheirScales) {
  for (int round = 0; round < 10; ++round) {
    const int64_t inputs = draw_inputs();
    const int64_t rows = random_.between(1, 200);
    const QuantisedMatrix m = maker_.make(GetParam(), rows, inputs);
    const int64_t row = random_.between(0, rows - 1);
    std::vector<float> want(m.decoded.begin() + row * inputs, m.decoded.begin() + (row + 1) * inputs);
    for (float& value : want) value = m.finish(value, row);
    for (const Kernels* kernels : kernel_sets()) {
      auto out = poisoned(inputs);
      kernels->decode_row(m.weight, row, out.data());
      expect_bits(out, want, kernels->name);
    }
  }
}

TEST_P(Quantised, OperationsDependOnNeitherThreadsNorColumns) {
  const int64_t inputs = 512;
  const int64_t rows = 300;
  const int64_t tokens = 11;
  const QuantisedMatrix m = maker_.make(GetParam(), rows, inputs);
  const auto x = random_.normal(inputs * tokens);
  base::WorkerPool alone(1);
  base::WorkerPool several(3);
  HostOps one(alone, true);
  HostOps three(several, true);
  auto y = poisoned(rows * tokens);
  auto lower = y;
  auto upper = y;
  three.linear(x.data(), tokens, m.weight, false, y.data());
  three.linear_halves(x.data(), tokens, m.weight, lower.data(), upper.data());
  auto single = poisoned(rows * tokens);
  auto single_lower = single;
  auto single_upper = single;
  for (int64_t t = 0; t < tokens; ++t) {
    one.linear(x.data() + t * inputs, 1, m.weight, false, single.data() + t * rows);
    one.linear_halves(x.data() + t * inputs, 1, m.weight, single_lower.data() + t * rows,
                      single_upper.data() + t * rows);
  }
  expect_bits(y, single, "whole");
  expect_bits(lower, single_lower, "lower");
  expect_bits(upper, single_upper, "upper");
}

TEST_P(Quantised, EmbeddingsAreRows) {
  const int64_t inputs = 256;
  const QuantisedMatrix m = maker_.make(GetParam(), 20, inputs);
  base::WorkerPool pool(1);
  HostOps ops(pool, false);
  const std::vector<int32_t> ids = {19, 0, 7};
  auto out = poisoned(3 * 2 * inputs);
  ops.embed(m.weight, ids.data(), 3, 2, out.data());
  std::vector<float> want;
  for (const int32_t id : ids) {
    for (int copy = 0; copy < 2; ++copy) {
      for (int64_t i = 0; i < inputs; ++i)
        want.push_back(m.finish(m.decoded[static_cast<size_t>(id * inputs + i)], id));
    }
  }
  expect_bits(out, want, "rows");
}

std::string name_of(const testing::TestParamInfo<WeightFormat>& format) {
  static constexpr const char* kNames[] = {"Bf16",     "F32",   "F16",  "Fp8Row", "Fp8Tensor",
                                           "Fp8Block", "Nvfp4", "Int3", "Int4",   "Int8"};
  return kNames[static_cast<size_t>(format.param)];
}

INSTANTIATE_TEST_SUITE_P(Formats, Quantised, testing::ValuesIn(kQuantisedFormats), name_of);

}  // namespace
}  // namespace tandem::ops::host
