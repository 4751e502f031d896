// What tests of attention on the card share: shapes, pages of several sequences, and both sides' answers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <vector>

#include "base/pool.h"
#include "numeric/bf16.h"
#include "ops/cuda/attention.h"
#include "ops/host/host_ops.h"
#include "tests/ops/cuda/attention_card.h"
#include "tests/ops/cuda/skip_without_card.h"

namespace tandem::ops::cuda {

inline constexpr KvType kTypes[] = {KvType::kBF16, KvType::kF32, KvType::kInt8};
inline const AttentionShape kFlash{.kv_heads = 2};
inline const AttentionShape kDense{};
inline const AttentionShape kSmall{.heads = 4, .kv_heads = 2, .head_dim = 64, .index_heads = 2, .index_dim = 32};
inline const AttentionShape kOdd{
    .heads = 5, .kv_heads = 1, .head_dim = 80, .index_heads = 3, .index_dim = 48, .ratio = 8};
inline const AttentionShape kTiny{.heads = 36, .kv_heads = 1, .head_dim = 16, .index_heads = 1, .index_dim = 16};

// The index of kFlash, beside few keys and values.
inline const AttentionShape kIndex{.heads = 1, .kv_heads = 1, .head_dim = 16};

inline AttentionShape with(AttentionShape shape, KvType type) {
  shape.type = type;
  return shape;
}

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_A_CARD();
    card = std::make_unique<StateCard>();
  }

  // Pages of all tokens up to the last of each run, with the host's operation.
  void fill_pages(PagedSequences& sequences, const AttentionShape& shape) {
    for (size_t r = 0; r < sequences.runs().size(); ++r) {
      ops::Run run = sequences.host_run(static_cast<int64_t>(r) * sequences.each());
      const int64_t tokens = run.position + run.tokens;
      run.position = 0;
      run.tokens = tokens;
      const std::vector<ops::Run> runs{run};
      const Columns columns{runs, runs.data(), tokens, tokens, true};
      // Keys and values of one sequence from the same random numbers, at changing places.
      const auto numbers = random.normal(shape.kv_width() + 40960);
      std::vector<float> k(static_cast<size_t>(tokens * shape.kv_width()));
      std::vector<float> v(k.size());
      for (int64_t t = 0; t < tokens; ++t) {
        std::copy_n(numbers.begin() + t * 37 % 40951, shape.kv_width(), k.begin() + t * shape.kv_width());
        std::copy_n(numbers.begin() + t * 53 % 40939, shape.kv_width(), v.begin() + t * shape.kv_width());
      }
      const std::vector<float> norm(static_cast<size_t>(shape.head_dim), 0.5F);
      std::vector<float> q_gate(static_cast<size_t>(tokens * 2 * shape.kv_width()));
      std::vector<float> q(static_cast<size_t>(tokens * shape.kv_width()));
      host.attention_inputs(columns, {.q_gate = q_gate.data(),
                                      .k = k.data(),
                                      .v = v.data(),
                                      .q_norm = norm.data(),
                                      .k_norm = norm.data(),
                                      .heads = shape.kv_heads,
                                      .rotary = {shape.head_dim / 4 / 2 * 2, 1e7},
                                      .kv = sequences.host_layer(),
                                      .q = q.data()});
    }
    sequences.upload_pages();
  }

  // Queries as attention_inputs leaves them.
  std::vector<float> queries(int64_t columns, const AttentionShape& shape) {
    auto q = random.normal(columns * shape.width(), 1.2F);
    for (float& x : q) x = numeric::bf16_to_float(numeric::bf16_from_float(x));
    return q;
  }

  // Queries, which attention does not read, and gates.
  std::vector<float> gates(int64_t columns, const AttentionShape& shape) {
    auto q_gate = random.normal(2 * columns * shape.width());
    for (int64_t row = 0; row < columns * shape.heads; ++row) {
      std::fill_n(q_gate.begin() + 2 * row * shape.head_dim, shape.head_dim, NAN);
    }
    return q_gate;
  }

  std::vector<float> attend(PagedSequences& sequences, const AttentionShape& shape, const std::vector<float>& q,
                            const BlockSelection* selection = nullptr, const std::vector<float>& q_gate = {}) {
    Array<float> device_q(*card, q);
    Array<float> device_q_gate(*card, q_gate.empty() ? q : q_gate);
    Array<float> out(*card, poisoned(static_cast<int64_t>(q.size())));
    attention(card->context, sequences.device(),
              {.q = device_q.data(),
               .heads = shape.heads,
               .scale = scale(shape),
               .kv = sequences.device_layer(),
               .selection = selection,
               .q_gate = q_gate.empty() ? nullptr : device_q_gate.data(),
               .out = out.data()});
    return out.get();
  }
  std::vector<float> attend_on_host(PagedSequences& sequences, const AttentionShape& shape, const std::vector<float>& q,
                                    const BlockSelection* selection = nullptr, const std::vector<float>& q_gate = {}) {
    auto out = poisoned(static_cast<int64_t>(q.size()));
    host.attention(sequences.host(), {.q = q.data(),
                                      .heads = shape.heads,
                                      .scale = scale(shape),
                                      .kv = sequences.host_layer(),
                                      .selection = selection,
                                      .q_gate = q_gate.empty() ? nullptr : q_gate.data(),
                                      .out = out.data()});
    return out;
  }
  static float scale(const AttentionShape& shape) { return 1.0F / std::sqrt(static_cast<float>(shape.head_dim)); }

  // Each column's answers within `tolerance` of the host's; padding zero.
  static void expect_columns(const PagedSequences& sequences, int64_t width, const std::vector<float>& got,
                             const std::vector<float>& want, double tolerance) {
    for (int64_t c = 0; c < sequences.count(); ++c) {
      const std::vector<float> column(got.begin() + c * width, got.begin() + (c + 1) * width);
      if (!sequences.holds(c)) {
        ASSERT_EQ(column, std::vector<float>(static_cast<size_t>(width), 0.0F)) << "padding, column " << c;
        continue;
      }
      ASSERT_LT(relative_error(column, {want.begin() + c * width, want.begin() + (c + 1) * width}), tolerance)
          << "column " << c << " at position " << sequences.position(c);
    }
  }
  // Weights are rounded to BF16 before they meet the values (to FP16 in pages of 8 bits): 2^-9 of each at most,
  // and where values cancel a little more of their sum. In FP32 sums of some thousand numbers differ in their order.
  static double tolerance(const StateCard& card, KvType type) {
    return card.context.tensor_cores && type != KvType::kF32 ? 4e-3 : 2e-5;
  }

  std::unique_ptr<StateCard> card;
  RandomData random;
  base::WorkerPool pool{4};
  host::HostOps host{pool, true};
};

// A random selection of ascending blocks for each column; every third column sees everything.
struct Chosen {
  std::vector<int32_t> blocks, counts;
  BlockSelection host;
  std::unique_ptr<Array<int32_t>> device_blocks, device_counts;
  BlockSelection device;

  Chosen(StateCard& card, RandomData& random, const PagedSequences& sequences, const AttentionShape& shape,
         int64_t budget)
      : blocks(static_cast<size_t>(sequences.count() * budget), -1234567),
        counts(static_cast<size_t>(sequences.count()), BlockSelection::kEverything) {
    for (int64_t c = 0; c < sequences.count(); ++c) {
      const int64_t visible = sequences.holds(c) ? (sequences.position(c) + 1) / shape.ratio : 0;
      if (visible <= budget) continue;
      std::vector<int32_t> all(static_cast<size_t>(visible));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random.engine());
      std::sort(all.begin(), all.begin() + budget);
      std::copy_n(all.begin(), budget, blocks.begin() + c * budget);
      counts[static_cast<size_t>(c)] = static_cast<int32_t>(budget);
    }
    device_blocks = std::make_unique<Array<int32_t>>(card, blocks);
    device_counts = std::make_unique<Array<int32_t>>(card, counts);
    host = {budget, blocks.data(), counts.data()};
    device = {budget, device_blocks->data(), device_counts->data()};
  }
};

}  // namespace tandem::ops::cuda
