// What attention begins with on the card against the host's: queries, keys and values, the index's keys, and the choice
// of blocks.
#include <cstring>

#include "numeric/int8_kv.h"
#include "tests/ops/cuda/attention_fixture.h"

namespace tandem::ops::cuda {
namespace {

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

}  // namespace
}  // namespace tandem::ops::cuda
