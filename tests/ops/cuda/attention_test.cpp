// Attention on the card against the host's: pages of every type, ragged positions, several sequences, windows with
// padding, chosen blocks; and that a column's bits do not depend on what stands beside it.
#include "ops/cuda/attention.h"

#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <numeric>

#include "base/pool.h"
#include "numeric/bf16.h"
#include "numeric/int8_kv.h"
#include "ops/cuda/elementwise.h"
#include "ops/host/host_ops.h"
#include "tests/ops/cuda/attention_card.h"
#include "tests/ops/cuda/skip_without_card.h"

namespace tandem::ops::cuda {
namespace {

constexpr KvType kTypes[] = {KvType::kBF16, KvType::kF32, KvType::kInt8};
const AttentionShape kFlash{.kv_heads = 2};
const AttentionShape kDense{};
const AttentionShape kSmall{.heads = 4, .kv_heads = 2, .head_dim = 64, .index_heads = 2, .index_dim = 32};
const AttentionShape kOdd{.heads = 5, .kv_heads = 1, .head_dim = 80, .index_heads = 3, .index_dim = 48, .ratio = 8};
const AttentionShape kTiny{.heads = 36, .kv_heads = 1, .head_dim = 16, .index_heads = 1, .index_dim = 16};

// The index of kFlash, beside few keys and values.
const AttentionShape kIndex{.heads = 1, .kv_heads = 1, .head_dim = 16};

AttentionShape with(AttentionShape shape, KvType type) {
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

TEST_F(CudaAttention, InputsAreNormalisedRotatedAndAppended) {
  for (const AttentionShape& base : {kFlash, kSmall, kOdd, kTiny}) {
    for (const KvType type : kTypes) {
      const AttentionShape shape = with(base, type);
      for (const bool round : {true, false}) {
        SCOPED_TRACE(testing::Message() << "dimensions " << shape.head_dim << " type " << static_cast<int>(type)
                                        << " round " << round);
        StateCard own(round);
        host::HostOps own_host(pool, round);
        PagedSequences sequences(own, random, shape, {{61, 5}, {0, 3}, {12345, 4}, {7, 0}}, 5);
        const int64_t columns = sequences.count();
        const auto q_gate = random.normal(columns * 2 * shape.width());
        const auto k = random.normal(columns * shape.kv_width());
        const auto v = random.normal(columns * shape.kv_width(), 2.0F);
        const auto q_norm = random.normal(shape.head_dim, 0.2F);
        const auto k_norm = random.normal(shape.head_dim, 0.2F);
        auto q = poisoned(columns * shape.width());
        Array<float> d_q_gate(own, q_gate), d_k(own, k), d_v(own, v), d_q_norm(own, q_norm), d_k_norm(own, k_norm);
        Array<float> d_q(own, q);
        Ops::AttentionInputs args{.q_gate = q_gate.data(),
                                  .k = k.data(),
                                  .v = v.data(),
                                  .q_norm = q_norm.data(),
                                  .k_norm = k_norm.data(),
                                  .heads = shape.heads,
                                  .rotary = {shape.head_dim / 4 / 2 * 2, 1e7},
                                  .kv = sequences.host_layer(),
                                  .q = q.data()};
        own_host.attention_inputs(sequences.host(), args);
        args.q_gate = d_q_gate.data();
        args.k = d_k.data();
        args.v = d_v.data();
        args.q_norm = d_q_norm.data();
        args.k_norm = d_k_norm.data();
        args.kv = sequences.device_layer();
        args.q = d_q.data();
        attention_inputs(own.context, sequences.device(), args);
        const auto got_q = d_q.get();
        for (int64_t i = 0; i < columns * shape.width(); ++i) {
          if (!sequences.holds(i / shape.width())) continue;
          const auto at = static_cast<size_t>(i);
          ASSERT_NEAR(got_q[at], q[at], round ? std::abs(q[at]) * 0x1p-7 + 1e-5 : 2e-5) << i;
        }
        // Values have the same bytes as the host's, and nothing else was touched but keys (and their scales), which
        // differ by the rounding of sums.
        std::vector<std::byte> pages = sequences.device_pages();
        const KvLayer layer = sequences.host_layer();
        for (int64_t c = 0; c < columns; ++c) {
          if (!sequences.holds(c)) continue;
          const int64_t position = sequences.position(c);
          for (int64_t h = 0; h < shape.kv_heads; ++h) {
            const int64_t row = h * 64 + position % 64;
            const int64_t page = sequences.host_run(c).block_table[position / 64] * layer.page_bytes + kLayerOffset;
            const int64_t groups = (shape.head_dim + 63) / 64;
            const int64_t key = page + row * shape.head_dim * shape.element_bytes();
            const int64_t scales = page + 2 * shape.keys_bytes() + row * groups * 2;
            for (int64_t d = 0; d < shape.head_dim; ++d) {
              const auto number = [&](const std::vector<std::byte>& from) {
                const std::byte* element = from.data() + key + d * shape.element_bytes();
                if (type == KvType::kF32) return *reinterpret_cast<const float*>(element);
                if (type == KvType::kBF16) return numeric::bf16_to_float(*reinterpret_cast<const uint16_t*>(element));
                const auto scale = reinterpret_cast<const uint16_t*>(from.data() + scales)[d / 64];
                return numeric::int8_kv_decode(static_cast<int8_t>(*element), scale);
              };
              const double want = number(sequences.host_pages);
              const double rounding = type == KvType::kF32    ? 2e-5
                                      : type == KvType::kBF16 ? 0.01 * std::abs(want) + 1e-5
                                                              : 0.05;
              ASSERT_NEAR(number(pages), want, rounding);
            }
            std::copy_n(sequences.host_pages.begin() + key, shape.head_dim * shape.element_bytes(),
                        pages.begin() + key);
            if (type == KvType::kInt8) {
              std::copy_n(sequences.host_pages.begin() + scales, groups * 2, pages.begin() + scales);
            }
          }
        }
        ASSERT_TRUE(pages == sequences.host_pages);
      }
    }
  }
}

TEST_F(CudaAttention, IndexKeysArePooledAlsoOfBlocksBegunBefore) {
  for (const AttentionShape& base : {kIndex, kSmall, kOdd, kTiny}) {
    for (const KvType type : kTypes) {
      const AttentionShape shape = with(base, type);
      SCOPED_TRACE(testing::Message() << "dimensions " << shape.index_dim << " type " << static_cast<int>(type));
      for (const int64_t each : {1, 5, 40}) {
        PagedSequences sequences(
            *card, random, shape,
            {{61, std::min<int64_t>(each, 37)}, {0, each}, {12347, std::min<int64_t>(each, 3)}, {6, each}, {7, 0}},
            each);
        const int64_t columns = sequences.count();
        const auto qk = random.normal(columns * shape.index_width());
        const auto norm = random.normal(shape.index_dim, 0.2F);
        auto q = poisoned(columns * shape.index_heads * shape.index_dim);
        Array<float> d_qk(*card, qk), d_norm(*card, norm), d_q(*card, q);
        Ops::IndexInputs args{.qk = qk.data(),
                              .q_norm = norm.data(),
                              .k_norm = norm.data(),
                              .heads = shape.index_heads,
                              .rotary = {shape.index_dim / 2, 1e7},
                              .kv = sequences.host_layer(),
                              .recent = 32,
                              .q = q.data()};
        host.index_inputs(sequences.host(), args);
        args.qk = d_qk.data();
        args.q_norm = args.k_norm = d_norm.data();
        args.kv = sequences.device_layer();
        args.q = d_q.data();
        index_inputs(card->context, sequences.device(), args);
        const auto got = d_q.get();
        for (int64_t i = 0; i < static_cast<int64_t>(q.size()); ++i) {
          if (!sequences.holds(i / (shape.index_heads * shape.index_dim))) continue;
          const auto at = static_cast<size_t>(i);
          ASSERT_NEAR(got[at], q[at], std::abs(q[at]) * 0x1p-7 + 1e-5);
        }
        for (size_t r = 0; r < sequences.slots.size(); ++r) {
          ASSERT_EQ(sequences.device_slots[r]->get(), sequences.slots[r]) << "the ring of run " << r;
        }
        const std::vector<std::byte> pages = sequences.device_pages();
        const int64_t bytes = shape.index_element_bytes();
        ASSERT_EQ(pages.size(), sequences.host_pages.size());
        for (size_t i = 0; i + 4 <= pages.size(); i += static_cast<size_t>(bytes)) {
          if (std::memcmp(&pages[i], &sequences.host_pages[i], static_cast<size_t>(bytes)) == 0) continue;
          float a = 0;
          float b = 0;
          if (bytes == 4) {
            std::memcpy(&a, &pages[i], 4);
            std::memcpy(&b, &sequences.host_pages[i], 4);
          } else {
            a = numeric::bf16_to_float(*reinterpret_cast<const uint16_t*>(&pages[i]));
            b = numeric::bf16_to_float(*reinterpret_cast<const uint16_t*>(&sequences.host_pages[i]));
          }
          ASSERT_NEAR(a, b, bytes == 4 ? 2e-5 : std::abs(b) * 0.02 + 1e-5) << "each " << each << " byte " << i;
        }
      }
    }
  }
}

// Queries and keys of small whole numbers, whose scores are exact in any order and often equal.
TEST_F(CudaAttention, TheBestBlocksAreChosenAndTheLowerAmongEquals) {
  struct Case {
    AttentionShape shape;
    std::vector<SequenceShape> sequences;
    int64_t each, budget;
    int range;
  };
  const std::vector<Case> cases = {
      {kIndex, {{8000, 1}}, 1, 512, 3},
      {kIndex, {{30000, 3}, {100, 4}, {2100, 2}}, 4, 512, 2},
      {kIndex, {{24001, 1}}, 1, 512, 0},  // all scores are equal
      {kIndex, {{90003, 2}}, 2, 512, 4},  // a row of scores is more than shared memory holds
      {kIndex, {{100001, 1}}, 1, 512, 1},
      {kIndex, {{16000, 1}}, 1, 512, 1},
      {kIndex, {{1990, 150}, {9000, 31}}, 150, 512, 2},
      {kSmall, {{0, 80}, {300, 77}}, 80, 4, 2},
      {kSmall, {{5000, 8}}, 8, 32, 4},
      {kOdd, {{999, 1}, {1003, 1}, {50, 1}, {3000, 0}}, 1, 7, 3},
      {kTiny, {{400, 20}}, 20, 1, 3},
      {kTiny, {{4099, 1}}, 1, 100, 5},
  };
  const int own_capability = card->context.capability;
  for (const Case& c : cases) {
    for (const KvType type : kTypes) {
      for (const bool tensor_cores : {true, false}) {
        const AttentionShape shape = with(c.shape, type);
        card->context.tensor_cores = tensor_cores;
        card->context.capability = type == KvType::kInt8 ? 120 : own_capability;  // a card without clusters
        SCOPED_TRACE(testing::Message() << "each " << c.each << " position " << c.sequences[0].position << " range "
                                        << c.range << " type " << static_cast<int>(type) << " tc " << tensor_cores);
        PagedSequences sequences(*card, random, shape, c.sequences, c.each);
        const KvLayer layer = sequences.host_layer();
        std::uniform_int_distribution<int> whole(-c.range, c.range);
        for (size_t page = 0; page < sequences.host_pages.size() / static_cast<size_t>(layer.page_bytes); ++page) {
          std::byte* to = sequences.host_pages.data() + page * static_cast<size_t>(layer.page_bytes) + kLayerOffset +
                          2 * shape.keys_bytes() + shape.scales_bytes();
          for (int64_t i = 0; i < 64 / shape.ratio * shape.index_dim; ++i) {
            const auto x = static_cast<float>(whole(random.engine()));
            if (type == KvType::kF32) {
              reinterpret_cast<float*>(to)[i] = x;
            } else {
              reinterpret_cast<uint16_t*>(to)[i] = numeric::bf16_from_float(x);
            }
          }
        }
        sequences.upload_pages();
        std::vector<float> q(static_cast<size_t>(sequences.count() * shape.index_heads * shape.index_dim));
        for (float& x : q) x = static_cast<float>(whole(random.engine()));
        const auto size = static_cast<size_t>(sequences.count() * c.budget);
        std::vector<int32_t> blocks(size, -5);
        std::vector<int32_t> counts(static_cast<size_t>(sequences.count()), -5);
        Array<int32_t> d_blocks(*card, blocks), d_counts(*card, counts);
        Array<float> d_q(*card, q);
        host.select_blocks(sequences.host(), {.q = q.data(), .heads = shape.index_heads, .kv = layer},
                           {c.budget, blocks.data(), counts.data()});
        select_blocks(card->context, sequences.device(),
                      {.q = d_q.data(), .heads = shape.index_heads, .kv = sequences.device_layer()},
                      {c.budget, d_blocks.data(), d_counts.data()});
        ASSERT_EQ(d_counts.get(), counts);
        ASSERT_EQ(d_blocks.get(), blocks);
      }
    }
  }
}

TEST_F(CudaAttention, FewColumnsAttendToEverythingBefore) {
  struct Case {
    AttentionShape shape;
    std::vector<SequenceShape> sequences;
    int64_t each;
  };
  const std::vector<Case> cases = {
      {kFlash, {{0, 1}}, 1},
      {kFlash, {{63, 1}, {64, 1}, {65, 1}, {255, 1}, {256, 1}, {700, 1}}, 1},
      {kFlash, {{510, 4}}, 4},
      {kDense, {{300, 3}, {62, 1}}, 4},
      {kDense, {{1000, 8}}, 8},
      {kDense, {{40, 0}, {290, 1}}, 2},
      {kSmall, {{33300, 1}, {20, 1}}, 1},
      {kSmall, {{32766, 4}}, 4},
      // Columns whose lists are cut into pieces of two lengths, in one run.
      {kSmall, {{12285, 8}}, 8},
      {kSmall, {{24573, 7}}, 8},
      {kDense, {{12286, 4}}, 4},
      {kOdd, {{513, 3}, {5, 2}}, 4},
      {kTiny, {{300, 3}, {3, 1}}, 3},
  };
  for (const Case& c : cases) {
    for (const KvType type : kTypes) {
      for (const bool tensor_cores : {true, false}) {
        const AttentionShape shape = with(c.shape, type);
        card->context.tensor_cores = tensor_cores;
        SCOPED_TRACE(testing::Message() << "dimensions " << shape.head_dim << " each " << c.each << " position "
                                        << c.sequences[0].position << " type " << static_cast<int>(type) << " tc "
                                        << tensor_cores);
        PagedSequences sequences(*card, random, shape, c.sequences, c.each);
        fill_pages(sequences, shape);
        const auto q = queries(sequences.count(), shape);
        const auto q_gate = gates(sequences.count(), shape);
        expect_columns(sequences, shape.width(), attend(sequences, shape, q, nullptr, q_gate),
                       attend_on_host(sequences, shape, q, nullptr, q_gate), tolerance(*card, type));
      }
    }
  }
}

TEST_F(CudaAttention, ManyColumnsAttendToEverythingBefore) {
  struct Case {
    AttentionShape shape;
    std::vector<SequenceShape> sequences;
    int64_t each;
  };
  const std::vector<Case> cases = {
      {kFlash, {{0, 200}}, 200},
      {kFlash, {{77, 9}, {0, 3}, {400, 0}}, 9},
      {kDense, {{130, 70}}, 70},
      {kSmall, {{0, 64}, {500, 40}}, 64},
      {kOdd, {{37, 100}, {0, 99}}, 100},
      {kTiny, {{60, 33}}, 33},
      {kSmall, std::vector<SequenceShape>(11, {150, 1}), 1},
      {kDense, {{300, 2}, {5, 1}, {64, 0}, {200, 3}}, 3},
  };
  for (const Case& c : cases) {
    for (const KvType type : kTypes) {
      for (const bool tensor_cores : {true, false}) {
        const AttentionShape shape = with(c.shape, type);
        card->context.tensor_cores = tensor_cores;
        SCOPED_TRACE(testing::Message() << "dimensions " << shape.head_dim << " each " << c.each << " position "
                                        << c.sequences[0].position << " type " << static_cast<int>(type) << " tc "
                                        << tensor_cores);
        PagedSequences sequences(*card, random, shape, c.sequences, c.each);
        fill_pages(sequences, shape);
        const auto q = queries(sequences.count(), shape);
        // Keys of 8 bits, too, are rounded to BF16 here, after their scales; and gates may weigh what is worst.
        const auto q_gate = gates(sequences.count(), shape);
        expect_columns(sequences, shape.width(), attend(sequences, shape, q, nullptr, q_gate),
                       attend_on_host(sequences, shape, q, nullptr, q_gate), 3 * tolerance(*card, type));
      }
    }
  }
}

TEST_F(CudaAttention, ColumnsAttendToTheirChosenBlocks) {
  struct Case {
    AttentionShape shape;
    std::vector<SequenceShape> sequences;
    int64_t each, budget;
  };
  const std::vector<Case> cases = {
      {kFlash, {{3001, 1}}, 1, 512},         {kFlash, {{2500, 4}, {60, 2}}, 4, 512}, {kFlash, {{2040, 20}}, 20, 512},
      {kSmall, {{100, 3}, {17, 2}}, 3, 4},   {kSmall, {{0, 200}}, 200, 16},          {kOdd, {{80, 30}, {0, 9}}, 30, 3},
      {kTiny, {{500, 2}, {100, 0}}, 2, 100}, {kDense, {{1500, 9}}, 9, 100},
  };
  for (const Case& c : cases) {
    for (const KvType type : kTypes) {
      for (const bool tensor_cores : {true, false}) {
        const AttentionShape shape = with(c.shape, type);
        card->context.tensor_cores = tensor_cores;
        SCOPED_TRACE(testing::Message() << "dimensions " << shape.head_dim << " each " << c.each << " position "
                                        << c.sequences[0].position << " type " << static_cast<int>(type) << " tc "
                                        << tensor_cores);
        PagedSequences sequences(*card, random, shape, c.sequences, c.each);
        fill_pages(sequences, shape);
        const Chosen chosen(*card, random, sequences, shape, c.budget);
        const auto q = queries(sequences.count(), shape);
        const auto q_gate = gates(sequences.count(), shape);
        expect_columns(sequences, shape.width(), attend(sequences, shape, q, &chosen.device, q_gate),
                       attend_on_host(sequences, shape, q, &chosen.host, q_gate), tolerance(*card, type));
        // Without gates, too.
        expect_columns(sequences, shape.width(), attend(sequences, shape, q, &chosen.device),
                       attend_on_host(sequences, shape, q, &chosen.host), tolerance(*card, type));
      }
    }
  }
}

// The same pages and queries, one column at a time.
TEST_F(CudaAttention, AColumnsBitsDoNotDependOnItsCompany) {
  struct Case {
    AttentionShape shape;
    std::vector<SequenceShape> sequences;
    int64_t each;
  };
  const std::vector<Case> cases = {{kFlash, {{254, 4}}, 4},          {kDense, {{507, 8}}, 8},
                                   {kFlash, {{126, 5}}, 8},          {kDense, {{317, 4}, {63, 4}}, 4},
                                   {kSmall, {{32765, 8}}, 8},        {kFlash, {{500, 1}, {3, 1}, {190, 1}}, 1},
                                   {kTiny, {{300, 4}, {255, 3}}, 4}, {kSmall, {{12284, 8}}, 8},
                                   {kSmall, {{24572, 8}}, 8},        {kDense, {{12286, 4}}, 4}};
  for (const Case& c : cases) {
    for (const KvType type : kTypes) {
      for (const bool choose : {false, true}) {
        const AttentionShape shape = with(c.shape, type);
        SCOPED_TRACE(testing::Message() << "dimensions " << shape.head_dim << " position " << c.sequences[0].position
                                        << " type " << static_cast<int>(type) << " choose " << choose);
        PagedSequences sequences(*card, random, shape, c.sequences, c.each);
        fill_pages(sequences, shape);
        const Chosen chosen(*card, random, sequences, shape, 16);
        const auto q = queries(sequences.count(), shape);
        const auto together = attend(sequences, shape, q, choose ? &chosen.device : nullptr);
        for (int64_t column = 0; column < sequences.count(); ++column) {
          if (!sequences.holds(column)) continue;
          ops::Run run = sequences.run_of(column);
          run.position = sequences.position(column);
          run.tokens = 1;
          const std::vector<ops::Run> runs{run};
          Array<ops::Run> table(*card, runs);
          const std::vector<float> own_q(q.begin() + column * shape.width(), q.begin() + (column + 1) * shape.width());
          Array<float> device_q(*card, own_q);
          Array<float> out(*card, poisoned(shape.width()));
          BlockSelection own = chosen.device;
          own.blocks += column * own.budget;
          own.counts += column;
          attention(card->context, {runs, table.data(), 1, run.position + 1 + column * 400, true},
                    {.q = device_q.data(),
                     .heads = shape.heads,
                     .scale = scale(shape),
                     .kv = sequences.device_layer(),
                     .selection = choose ? &own : nullptr,
                     .out = out.data()});
          const auto alone = out.get();
          ASSERT_EQ(std::memcmp(alone.data(), together.data() + column * shape.width(), alone.size() * 4), 0)
              << "column " << column;
        }
      }
    }
  }
}

// The kernels of attention begin before those that write a step's own keys and values have ended.
TEST_F(CudaAttention, WhatWasJustWrittenIsSeen) {
  for (const AttentionShape& base : {kFlash, kDense, kSmall}) {
    for (const KvType type : {KvType::kBF16, KvType::kInt8}) {
      for (const bool choose : {false, true}) {
        const AttentionShape shape = with(base, type);
        SCOPED_TRACE(testing::Message() << "dimensions " << shape.head_dim << " kv heads " << shape.kv_heads << " type "
                                        << static_cast<int>(type) << " choose " << choose);
        PagedSequences sequences(*card, random, shape, {{61, 4}, {0, 3}, {1022, 4}, {190, 2}}, 4);
        const int64_t columns = sequences.count();
        const Chosen chosen(*card, random, sequences, shape, 300);
        const std::vector<float> norm(static_cast<size_t>(shape.head_dim), 0.5F);
        Array<float> d_norm(*card, norm);
        Array<float> out(*card, poisoned(columns * shape.width()));
        const int own_capability = card->context.capability;
        for (int round = 0; round < 6; ++round) {
          card->context.capability = round % 2 == 0 ? own_capability : 120;  // of which blocks have less memory
          fill_pages(sequences, shape);
          const auto q_gate = random.normal(columns * 2 * shape.width());
          const auto k = random.normal(columns * shape.kv_width());
          const auto v = random.normal(columns * shape.kv_width(), 30.0F);
          auto q = poisoned(columns * shape.width());
          Array<float> d_q_gate(*card, q_gate), d_k(*card, k), d_v(*card, v), d_q(*card, q);
          Ops::AttentionInputs args{.q_gate = q_gate.data(),
                                    .k = k.data(),
                                    .v = v.data(),
                                    .q_norm = norm.data(),
                                    .k_norm = norm.data(),
                                    .heads = shape.heads,
                                    .rotary = {shape.head_dim / 4 / 2 * 2, 1e7},
                                    .kv = sequences.host_layer(),
                                    .q = q.data()};
          host.attention_inputs(sequences.host(), args);
          args.q_gate = d_q_gate.data();
          args.k = d_k.data();
          args.v = d_v.data();
          args.q_norm = args.k_norm = d_norm.data();
          args.kv = sequences.device_layer();
          args.q = d_q.data();
          attention_inputs(card->context, sequences.device(), args);
          attention(card->context, sequences.device(),
                    {.q = d_q.data(),
                     .heads = shape.heads,
                     .scale = scale(shape),
                     .kv = sequences.device_layer(),
                     .selection = choose ? &chosen.device : nullptr,
                     .out = out.data()});
          // Keys and queries may round to a neighbour of the host's.
          expect_columns(sequences, shape.width(), out.get(),
                         attend_on_host(sequences, shape, q, choose ? &chosen.host : nullptr), 0.03);
        }
        card->context.capability = own_capability;
      }
    }
  }
}

// What gated_attention() takes, behind a launch that writes it, and what it leaves.
struct GatedStep {
  StateCard& card;
  PagedSequences& sequences;
  AttentionShape shape;
  int64_t budget;  // 0: without a choice
  std::vector<float> q_gate, k, v, qk;
  Array<float> q_norm, k_norm, index_norm;

  GatedStep(StateCard& on, RandomData& random, PagedSequences& of, const AttentionShape& shape_, int64_t budget_)
      : card(on),
        sequences(of),
        shape(shape_),
        budget(budget_),
        q_gate(random.normal(of.count() * 2 * shape.width())),
        k(random.normal(of.count() * shape.kv_width())),
        v(random.normal(of.count() * shape.kv_width(), 3.0F)),
        qk(random.normal(of.count() * shape.index_width())),
        q_norm(on, random.normal(shape.head_dim, 0.2F)),
        k_norm(on, random.normal(shape.head_dim, 0.2F)),
        index_norm(on, random.normal(shape.index_dim, 0.2F)) {}

  struct Left {
    std::vector<float> out;
    std::vector<int32_t> blocks, counts;
    std::vector<std::byte> pages;
    std::vector<std::vector<float>> rings;
  };
  Left run(const std::function<void(const Columns&, const Ops::GatedAttention&)>& operation) {
    const int64_t columns = sequences.count();
    sequences.upload_pages();
    for (size_t r = 0; r < sequences.slots.size(); ++r) sequences.device_slots[r]->set(sequences.slots[r]);
    Array<float> out(card, poisoned(columns * shape.width())), q(card, poisoned(columns * shape.width()));
    Array<float> index_q(card, poisoned(columns * shape.index_heads * shape.index_dim));
    Array<int32_t> blocks(card, std::vector<int32_t>(static_cast<size_t>(columns * budget + 1), -5));
    Array<int32_t> counts(card, std::vector<int32_t>(static_cast<size_t>(columns), -5));
    const BlockSelection selection{budget, blocks.data(), counts.data()};
    const std::vector<const std::vector<float>*> projections = {&q_gate, &k, &v, &qk};
    std::vector<std::unique_ptr<Array<float>>> from, to;
    for (const std::vector<float>* values : projections) {
      from.push_back(std::make_unique<Array<float>>(card, *values));
      to.push_back(std::make_unique<Array<float>>(card, std::vector<float>(values->size(), 0.0F)));
    }
    const KvLayer kv = sequences.device_layer();
    const Rotary rotary{shape.head_dim / 8 / 4 * 8, 1e7};
    const Ops::GatedAttention args{.inputs = {.q_gate = to[0]->data(),
                                              .k = to[1]->data(),
                                              .v = to[2]->data(),
                                              .q_norm = q_norm.data(),
                                              .k_norm = k_norm.data(),
                                              .heads = shape.heads,
                                              .rotary = rotary,
                                              .kv = kv,
                                              .q = q.data()},
                                   .selection = budget > 0 ? &selection : nullptr,
                                   .index = {.qk = to[3]->data(),
                                             .q_norm = index_norm.data(),
                                             .k_norm = index_norm.data(),
                                             .heads = shape.index_heads,
                                             .rotary = rotary,
                                             .kv = kv,
                                             .recent = 32,
                                             .q = index_q.data()},
                                   .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
                                   .out = out.data()};
    for (size_t i = 0; i < to.size(); ++i) {
      add(card.context, to[i]->data(), from[i]->data(), static_cast<int64_t>(projections[i]->size()));
    }
    operation(sequences.device(), args);
    Left left{out.get(), blocks.get(), counts.get(), sequences.device_pages(), {}};
    for (const auto& slot : sequences.device_slots) left.rings.push_back(slot->get());
    return left;
  }
};

TEST_F(CudaAttention, BetweenItsProjectionsItHasTheBitsOfItsParts) {
  struct Case {
    AttentionShape shape;
    std::vector<SequenceShape> sequences;
    int64_t each, budget;
  };
  const std::vector<Case> cases = {
      {kDense, {{1000, 1}}, 1, 0},
      {kDense, {{0, 1}}, 1, 0},
      {kDense, {{61, 4}, {300, 2}}, 4, 0},
      {kDense, {{1020, 8}}, 8, 0},
      {kDense, {{12286, 4}}, 4, 0},
      {kFlash, {{1023, 1}}, 1, 512},
      {kFlash, {{64, 1}, {1999, 1}, {3, 1}, {127, 1}}, 1, 512},
      {kFlash, {{1018, 8}}, 8, 512},
      {kFlash, {{125, 3}, {0, 0}}, 4, 512},
      {kFlash, {{3000, 2}, {700, 4}}, 4, 512},  // a choice, in the first run alone
      {kSmall, {{200, 4}, {62, 1}}, 4, 64},
      {kSmall, {{12284, 8}}, 8, 0},
      {kTiny, {{300, 4}, {255, 3}}, 4, 0},
      {kTiny, {{300, 4}, {255, 3}}, 4, 100},
      {kOdd, {{513, 3}, {5, 2}}, 4, 100},
      {kDense, {{290, 9}}, 9, 0},  // more than few
  };
  for (const Case& c : cases) {
    for (const KvType type : kTypes) {
      const AttentionShape shape = with(c.shape, type);
      SCOPED_TRACE(testing::Message() << "dimensions " << shape.head_dim << " each " << c.each << " position "
                                      << c.sequences[0].position << " type " << static_cast<int>(type) << " budget "
                                      << c.budget);
      PagedSequences sequences(*card, random, shape, c.sequences, c.each);
      fill_pages(sequences, shape);
      GatedStep step(*card, random, sequences, shape, c.budget);
      const auto parts = [&](const Columns& columns, const Ops::GatedAttention& args) {
        attention_inputs(card->context, columns, args.inputs);
        if (args.selection != nullptr) {
          index_inputs(card->context, columns, args.index);
          select_blocks(card->context, columns, args.select(), *args.selection);
        }
        attention(card->context, columns, args.attention());
      };
      const auto want = step.run(parts);
      bool served = false;
      for (int round = 0; round < 3; ++round) {
        const auto got = step.run([&](const Columns& columns, const Ops::GatedAttention& args) {
          served = gated_attention(card->context, columns, args);
          if (!served) parts(columns, args);
        });
        ASSERT_EQ(std::memcmp(got.out.data(), want.out.data(), want.out.size() * 4), 0);
        ASSERT_TRUE(got.pages == want.pages);
        ASSERT_EQ(got.rings, want.rings);
        for (int64_t column = 0; column < sequences.count() && c.budget > 0; ++column) {
          if (!sequences.holds(column)) continue;
          ASSERT_EQ(got.counts[static_cast<size_t>(column)], want.counts[static_cast<size_t>(column)]);
        }
        ASSERT_EQ(got.blocks, want.blocks);
      }
      EXPECT_EQ(served, sequences.count() <= kMostFewColumns);
    }
  }
}

TEST_F(CudaAttention, APromptsBitsDoNotDependOnHowItIsCut) {
  for (const KvType type : {KvType::kBF16, KvType::kInt8}) {
    for (const AttentionShape& base : {kFlash, kSmall}) {
      const AttentionShape shape = with(base, type);
      PagedSequences whole(*card, random, shape, {{0, 210}}, 210);
      fill_pages(whole, shape);
      const auto q = queries(210, shape);
      const auto at_once = attend(whole, shape, q);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 64}, {64, 171}, {171, 210}}) {
        ops::Run run = whole.run_of(0);
        run.position = begin;
        run.tokens = end - begin;
        const std::vector<ops::Run> runs{run};
        Array<ops::Run> table(*card, runs);
        const std::vector<float> own_q(q.begin() + begin * shape.width(), q.begin() + end * shape.width());
        Array<float> device_q(*card, own_q);
        Array<float> out(*card, poisoned((end - begin) * shape.width()));
        attention(card->context, {runs, table.data(), end - begin, end, true},
                  {.q = device_q.data(),
                   .heads = shape.heads,
                   .scale = scale(shape),
                   .kv = whole.device_layer(),
                   .out = out.data()});
        const auto part = out.get();
        ASSERT_EQ(std::memcmp(part.data(), at_once.data() + begin * shape.width(), part.size() * 4), 0);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cuda
