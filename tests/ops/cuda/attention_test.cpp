// Attention on the card against the host's: pages of every type, ragged positions, several sequences, windows with
// padding, chosen blocks; and that a column's bits do not depend on what stands beside it.
#include <cstring>
#include <functional>

#include "ops/cuda/elementwise.h"
#include "tests/ops/cuda/attention_fixture.h"

namespace tandem::ops::cuda {
namespace {

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
