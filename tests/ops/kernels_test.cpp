// The two instruction sets give the same bits, and the lanes' exp is numeric::exp_f32.
#include "ops/host/kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>

#include "numeric/exp.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::host {
namespace {

class KernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (avx512_kernels() == nullptr) GTEST_SKIP() << "this processor has no AVX-512: only one set to run";
  }
  const Kernels& narrow_ = *avx2_kernels();
  RandomData random_;
};

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST_F(KernelsTest, LinearDependsOnNeitherInstructionSetNorColumnsNorRange) {
  for (const bool bf16 : {true, false}) {
    for (int round = 0; round < 20; ++round) {
      // Beyond a piece of the inputs and a block of rows, too; one input leaves the lower half empty.
      const int64_t inputs = round == 1 ? 1 : random_.between(1, round % 4 == 0 ? 9000 : 300);
      const int64_t rows = random_.between(1, 70);
      const int64_t columns = random_.between(1, 21);
      const auto x = random_.normal(inputs * columns);
      const auto bits = random_.normal_bf16(rows * inputs);
      const auto floats = random_.normal(rows * inputs);
      const Weight w{.data = bf16 ? static_cast<const void*>(bits.data()) : floats.data(),
                     .format = bf16 ? WeightFormat::kBF16 : WeightFormat::kF32,
                     .rows = rows,
                     .inputs = inputs};
      std::vector<float> scratch(static_cast<size_t>(dense_scratch_floats(inputs)));
      auto wide = poisoned(rows * columns);
      auto wide_upper = poisoned(rows * columns);
      auto single = wide;
      auto single_upper = wide;
      avx512_kernels()->linear(x.data(), inputs, columns, w, 0, rows, wide.data(), wide_upper.data(), rows,
                               scratch.data());
      for (int64_t c = 0; c < columns; ++c) {
        for (int64_t r = 0; r < rows; ++r) {
          narrow_.linear(x.data() + c * inputs, inputs, 1, w, r, r + 1, single.data() + c * rows,
                         single_upper.data() + c * rows, rows, nullptr);
        }
      }
      expect_same_bits(wide, single);
      expect_same_bits(wide_upper, single_upper);
    }
  }
}

TEST_F(KernelsTest, ElementwiseOperationsAgreeBitForBit) {
  for (const int64_t count : {1, 15, 16, 33, 256}) {
    auto a = random_.normal(count, 20.0F);
    auto b = a;
    const auto up = random_.normal(count);
    auto out_a = poisoned(count);
    auto out_b = out_a;
    avx512_kernels()->silu_multiply(a.data(), up.data(), count, out_a.data());
    narrow_.silu_multiply(b.data(), up.data(), count, out_b.data());
    expect_same_bits(out_a, out_b);
    avx512_kernels()->sigmoid_scaled(a.data(), count, 0.25F, 2.0F);
    narrow_.sigmoid_scaled(b.data(), count, 0.25F, 2.0F);
    expect_same_bits(a, b);
    avx512_kernels()->rms_norm(a.data(), count, 1e-6F, 1.0F, up.data(), out_a.data());
    narrow_.rms_norm(b.data(), count, 1e-6F, 1.0F, up.data(), out_b.data());
    expect_same_bits(out_a, out_b);
    avx512_kernels()->round_to_bf16(a.data(), count, out_a.data());
    narrow_.round_to_bf16(b.data(), count, out_b.data());
    expect_same_bits(out_a, out_b);
  }
}

TEST_F(KernelsTest, DeltaFormsAgreeBitForBit) {
  const int64_t kd = 128;
  const int64_t vd = 128;
  const auto q = random_.normal(64 * kd);
  const auto k = random_.normal(64 * kd);
  const auto v = random_.normal(64 * vd);
  auto beta = random_.normal(64);
  auto decay = random_.normal(64);
  for (float& x : beta) x = 1.0F / (1.0F + std::exp(-x));
  for (float& x : decay) x = -std::fabs(x);
  for (const bool chunk : {false, true}) {
    auto state_a = random_.normal(kd * vd);
    auto state_b = state_a;
    auto out_a = poisoned(64 * vd);
    auto out_b = out_a;
    const auto run = [&](const Kernels& kernels, std::vector<float>& state, std::vector<float>& out) {
      const DeltaHead head{q.data(), k.data(), v.data(),     kd,         beta.data(), decay.data(), 1, 64,
                           kd,       vd,       state.data(), out.data(), vd};
      std::vector<float> workspace(static_cast<size_t>(kernels.delta_chunk_workspace(kd, vd)));
      if (chunk) {
        kernels.delta_chunk(head, workspace.data());
      } else {
        kernels.delta_steps(head);
      }
    };
    run(*avx512_kernels(), state_a, out_a);
    run(narrow_, state_b, out_b);
    expect_same_bits(state_a, state_b);
    expect_same_bits(out_a, out_b);
  }
}

TEST_F(KernelsTest, AttentionAgreesBitForBit) {
  for (const bool bf16 : {true, false}) {
    const int64_t dim = 256;
    const int64_t count = random_.between(1, kAttentionPiece);
    const auto query = random_.normal(dim);
    const auto keys = random_.normal(count * dim);
    const auto values = random_.normal(count * dim);
    const auto key_bits = random_.normal_bf16(count * dim);
    AttentionPiece piece;
    piece.count = count;
    piece.bf16 = bf16;
    for (int64_t j = 0; j < count; ++j) {
      piece.keys[j] = bf16 ? static_cast<const void*>(key_bits.data() + j * dim) : keys.data() + j * dim;
      piece.values[j] = bf16 ? static_cast<const void*>(key_bits.data() + j * dim) : values.data() + j * dim;
    }
    std::vector<float> acc_a(dim, 0.0F);
    std::vector<float> acc_b(dim, 0.0F);
    SoftmaxState state_a{-INFINITY, 0};
    SoftmaxState state_b = state_a;
    for (int pass = 0; pass < 2; ++pass) {
      avx512_kernels()->attention_piece(query.data(), dim, 0.0625F, piece, state_a, acc_a.data());
      narrow_.attention_piece(query.data(), dim, 0.0625F, piece, state_b, acc_b.data());
    }
    expect_same_bits(acc_a, acc_b);
    EXPECT_EQ(state_a.sum, state_b.sum);
    EXPECT_EQ(state_a.largest, state_b.largest);
  }
}

TEST(Kernels, SiluIsTheCanonicalOneBitForBit) {
  RandomData random;
  auto gate = random.normal(4096, 30.0F);
  gate[0] = 0.0F;
  gate[1] = 88.8F;
  gate[2] = -88.8F;
  gate[3] = -110.0F;
  gate[4] = 200.0F;
  gate[5] = 1e-40F;
  const std::vector<float> ones(gate.size(), 1.0F);
  auto out = poisoned(static_cast<int64_t>(gate.size()));
  kernels().silu_multiply(gate.data(), ones.data(), static_cast<int64_t>(gate.size()), out.data());
  for (size_t i = 0; i < gate.size(); ++i) ASSERT_EQ(out[i], numeric::silu_f32(gate[i])) << gate[i];
}

}  // namespace
}  // namespace tandem::ops::host
