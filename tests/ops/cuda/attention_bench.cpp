// Times of attention at the published models' shapes, beside the card's rate of reading in the same run. Figures are of
// one call among many in a recording, medians of seven rounds; calls of short contexts rotate through layers enough to
// miss the second-level cache.
//   cuda_attention_bench [decode] [prefill] [select] [sparse] [layer] [between] [inputs] [CONTEXT]
// A number leaves other lengths of context out of decode, layer and select.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <set>
#include <string>

#include "ops/cuda/attention.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_measure.h"
#include "tests/ops/cuda/attention_card.h"

namespace tandem::ops::cuda {
namespace {

constexpr int kRounds = 7;
constexpr int64_t kMissBytes = int64_t{200} << 20;  // layers together, at least

// One sequence with `tokens` of context in pages of random numbers, for several layers.
struct PagedContext {
  AttentionShape shape;
  int64_t tokens;
  int64_t pages = (tokens + 63) / 64;
  int64_t layer_bytes = shape.layer_bytes();
  int64_t layers = std::max<int64_t>(1, (kMissBytes + pages * layer_bytes - 1) / (pages * layer_bytes));
  device::Buffer memory;
  std::unique_ptr<Array<int32_t>> block_table;

  PagedContext(StateCard& card, const AttentionShape& shape_, int64_t tokens_)
      : shape(shape_), tokens(tokens_), memory(*card.device, layers * pages * layer_bytes) {
    // Without the second highest bit numbers of 16 bits are below 2.
    fill_random(card.context, memory.data(), memory.bytes(), 1, 0xBFFFBFFFU);
    std::vector<int32_t> table(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    std::mt19937 engine(3);
    std::shuffle(table.begin(), table.end(), engine);
    block_table = std::make_unique<Array<int32_t>>(card, table);
  }
  KvLayer layer(int64_t i) {
    return {.pages = memory.data(),
            .page_bytes = layers * layer_bytes,
            .layer_offset = i % layers * layer_bytes,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .index_dim = shape.index_dim,
            .ratio = shape.ratio,
            .type = shape.type};
  }
};

// Columns at the end of a context, with queries and room for answers.
struct Step {
  std::vector<Run> runs;
  Array<Run> table;
  Columns columns;
  device::Buffer q, out, index_q, blocks, counts;
  BlockSelection selection;

  Step(StateCard& card, RandomData& random, PagedContext& context, int64_t count, int64_t budget = 512)
      : runs{{.position = context.tokens - count, .tokens = count, .block_table = context.block_table->data()}},
        table(card, runs),
        columns{runs, table.data(), count, context.tokens, true},
        q(*card.device, count * context.shape.width() * 4),
        out(*card.device, q.bytes()),
        index_q(*card.device, count * context.shape.index_heads * context.shape.index_dim * 4),
        blocks(*card.device, count * budget * 4),
        counts(*card.device, count * 4),
        selection{budget, blocks.as<int32_t>(), counts.as<int32_t>()} {
    fill(card, random, q);
    fill(card, random, index_q);
    std::vector<int32_t> chosen;
    std::vector<int32_t> numbers(static_cast<size_t>(count), static_cast<int32_t>(budget));
    for (int64_t c = 0; c < count; ++c) {
      const int64_t visible = (runs[0].position + c + 1) / context.shape.ratio;
      std::set<int32_t> own;
      while (static_cast<int64_t>(own.size()) < std::min(budget, visible)) {
        own.insert(static_cast<int32_t>(random.between(0, visible - 1)));
      }
      if (visible <= budget) numbers[static_cast<size_t>(c)] = BlockSelection::kEverything;
      chosen.insert(chosen.end(), own.begin(), own.end());
      chosen.resize(static_cast<size_t>((c + 1) * budget));
    }
    card.device->upload(blocks.data(), chosen.data(), blocks.bytes());
    card.device->upload(counts.data(), numbers.data(), counts.bytes());
    card.device->finish();
  }
  static void fill(StateCard& card, RandomData& random, device::Buffer& buffer) {
    const auto values = random.normal(1 << 16);
    for (int64_t at = 0; at < buffer.bytes(); at += 4 << 16) {
      card.device->upload(buffer.data() + at, values.data(), std::min<int64_t>(4 << 16, buffer.bytes() - at));
    }
    card.device->finish();
  }
};

struct Bench {
  int64_t only = 0;  // length of context, where not 0
  StateCard card;
  RandomData random;
  double read_rate = 0;  // bytes a microsecond

  Bench() {
    device::Buffer memory(*card.device, int64_t{1} << 30);
    device::Buffer sink(*card.device, 4);
    const auto time = measure_launches(card.context, 3, kRounds, [&](int) {
      read_all(card.context, memory.data(), memory.bytes(), sink.as<uint32_t>());
    });
    read_rate = static_cast<double>(memory.bytes()) / time.each_us;
    std::printf("plain read %.0f GB/s\n", read_rate / 1e3);
  }

  double attention_us(PagedContext& context, Step& step, bool chosen, int calls) {
    return measure_launches(card.context, calls, kRounds,
                            [&](int i) {
                              attention(card.context, step.columns,
                                        {.q = step.q.as<float>(),
                                         .heads = context.shape.heads,
                                         .scale = 0.0625F,
                                         .kv = context.layer(i),
                                         .selection = chosen ? &step.selection : nullptr,
                                         .out = step.out.as<float>()});
                            })
        .each_us;
  }
  double select_us(PagedContext& context, Step& step, int calls) {
    return measure_launches(
               card.context, calls, kRounds,
               [&](int i) {
                 select_blocks(
                     card.context, step.columns,
                     {.q = step.index_q.as<float>(), .heads = context.shape.index_heads, .kv = context.layer(i)},
                     step.selection);
               })
        .each_us;
  }

  static const char* name(KvType type) { return type == KvType::kBF16 ? "BF16" : "INT8"; }

  void decode() {
    for (const int64_t tokens : {1024, 8192, 65536, 250000}) {
      if (only != 0 && tokens != only) continue;
      for (const KvType type : {KvType::kInt8, KvType::kBF16}) {
        for (const int64_t kv_heads : {4, 2}) {
          AttentionShape shape;
          shape.type = type;
          shape.kv_heads = kv_heads;
          PagedContext context(card, shape, tokens);
          std::printf("decode %6ld %s %ld kv heads:", tokens, name(type), kv_heads);
          for (const int64_t count : {1, 2, 4, 8}) {
            if (count > 1 && tokens == 1024) continue;
            Step step(card, random, context, count);
            const double us = attention_us(context, step, false, tokens > 100000 ? 4 : 16);
            const double bytes = static_cast<double>(tokens * (2 * shape.keys_bytes() + shape.scales_bytes())) / 64;
            std::printf("  %ld col %.1f us (%.0f%%)", count, us, 100 * bytes / us / read_rate);
          }
          std::printf("\n");
        }
      }
    }
  }
  void prefill() {
    for (const KvType type : {KvType::kBF16, KvType::kInt8}) {
      AttentionShape shape;
      shape.type = type;
      for (const auto& [tokens, count] : {std::pair<int64_t, int64_t>{8192, 8192}, {65536, 2048}, {2048, 2048}}) {
        PagedContext context(card, shape, tokens);
        Step step(card, random, context, count);
        const double us = attention_us(context, step, false, 2);
        const double pairs = static_cast<double>(count) * static_cast<double>(2 * tokens - count + 1) / 2;
        std::printf("prefill %s %ld columns to %ld: %.0f us, %.0f TFLOP/s\n", name(type), count, tokens, us,
                    pairs * 4 * static_cast<double>(shape.width()) / us / 1e6);
      }
    }
  }
  void select() {
    for (const int64_t tokens : {1024, 8192, 65536, 250000}) {
      if (only != 0 && tokens != only) continue;
      AttentionShape shape{.kv_heads = 1, .head_dim = 16};
      PagedContext context(card, shape, tokens);
      const double bytes = 64.0 * static_cast<double>(tokens);
      for (const int64_t count : {1, 4, 8}) {
        Step step(card, random, context, count);
        const double us = select_us(context, step, 16);
        std::printf("select %ld, %ld columns: %.1f us (keys alone %.1f)\n", tokens, count, us, bytes / read_rate);
      }
      if (tokens < 65536) continue;
      Step step(card, random, context, 2048);
      std::printf("select %ld, 2048 columns: %.0f us\n", tokens, select_us(context, step, 1));
    }
  }
  void sparse() {
    for (const KvType type : {KvType::kInt8, KvType::kBF16}) {
      AttentionShape shape;
      shape.type = type;
      shape.kv_heads = 2;
      PagedContext context(card, shape, 65536);
      std::printf("sparse of 65536 %s:", name(type));
      for (const int64_t count : {1, 4, 8, 2048}) {
        Step step(card, random, context, count);
        std::printf("  %ld col %.1f us", count, attention_us(context, step, true, count > 8 ? 2 : 16));
      }
      std::printf("\n");
    }
  }
  // What attention begins with, from `count` columns of random projections.
  struct Beginning {
    Beginning(StateCard& on, RandomData& random, const AttentionShape& of, Step& columns, int64_t count)
        : card(on),
          shape(of),
          step(columns),
          q_gate(*on.device, 2 * columns.q.bytes()),
          k(*on.device, count * (of.kv_width() + of.index_width()) * 4),
          norm(*on.device, 1024, true),
          slot(*on.device, 16384) {
      Step::fill(card, random, q_gate);
      Step::fill(card, random, k);
      step.runs[0].slot = slot.data();
      step.table.set(step.runs);
    }
    Ops::AttentionInputs attention_args(const KvLayer& kv) {
      return {.q_gate = q_gate.as<float>(),
              .k = k.as<float>(),
              .v = k.as<float>(),
              .q_norm = norm.as<float>(),
              .k_norm = norm.as<float>(),
              .heads = shape.heads,
              .rotary = {64, 1e7},
              .kv = kv,
              .q = step.q.as<float>()};
    }
    Ops::IndexInputs index_args(const KvLayer& kv) {
      return {.qk = k.as<float>(),
              .q_norm = norm.as<float>(),
              .k_norm = norm.as<float>(),
              .heads = shape.index_heads,
              .rotary = {64, 1e7},
              .kv = kv,
              .q = step.index_q.as<float>()};
    }
    StateCard& card;
    const AttentionShape& shape;
    Step& step;
    device::Buffer q_gate, k, norm, slot;
  };
  // Those of a layer's mixer, in BF16: of the layer's inputs, and of what comes out.
  struct WideProducts {
    WideProducts(StateCard& on, const AttentionShape& shape, bool index, int64_t columns)
        : card(on),
          count(columns),
          hidden(shape.kv_heads == 2 ? 2560 : 5120),
          memory(*on.device,
                 (2 * shape.width() + 2 * shape.kv_width() + shape.index_width() + shape.width()) * hidden * 2),
          x(*on.device, count * std::max(hidden, shape.width()) * 4),
          y(*on.device, count * hidden * 4),
          raw(*on.device, count * (shape.kv_width() + shape.index_width()) * 4) {
      fill_random(card.context, memory.data(), memory.bytes(), 5, 0xBFFFBFFFU);
      fill_random(card.context, x.data(), x.bytes(), 6, 0xBFFFFFFFU);
      int64_t rows = 0;
      const auto next = [&](int64_t matrix_rows, int64_t width) {
        const Weight w{.data = memory.data() + rows * hidden * 2,
                       .format = WeightFormat::kBF16,
                       .rows = matrix_rows,
                       .inputs = width};
        rows += matrix_rows * width / hidden;
        return w;
      };
      for (const int64_t of : {2 * shape.width(), shape.kv_width(), shape.kv_width()})
        inputs.push_back(next(of, hidden));
      if (index) inputs.push_back(next(shape.index_width(), hidden));
      out = next(hidden, shape.width());
    }
    void before(Beginning& beginning) {
      const Ops::Product products[] = {{inputs[0], beginning.q_gate.as<float>()},
                                       {inputs[1], beginning.k.as<float>()},
                                       {inputs[2], raw.as<float>()},
                                       {inputs.back(), raw.as<float>()}};
      linear_group(card.context, x.as<float>(), count, std::span(products).first(inputs.size()), false);
    }
    void after(Step& step) { linear_sum(card.context, step.out.as<float>(), count, out, y.as<float>()); }

    StateCard& card;
    int64_t count, hidden;
    device::Buffer memory, x, y, raw;
    std::vector<Weight> inputs;
    Weight out;
  };
  // What a layer of a decode step launches between its wide products.
  void mix(PagedContext& context, Step& step, Beginning& beginning, bool choose, int64_t layer) {
    const KvLayer kv = context.layer(layer);
    const Ops::GatedAttention args{.inputs = beginning.attention_args(kv),
                                   .selection = choose ? &step.selection : nullptr,
                                   .index = beginning.index_args(kv),
                                   .scale = 0.0625F,
                                   .out = step.out.as<float>()};
    if (!gated_attention(card.context, step.columns, args)) std::printf("not served ");
  }
  void layer() {
    for (const int64_t tokens : {1024, 8192, 65536}) {
      if (only != 0 && tokens != only) continue;
      for (const bool choose : {false, true}) {
        AttentionShape shape;
        shape.kv_heads = choose ? 2 : 4;
        PagedContext context(card, shape, tokens);
        Step step(card, random, context, 1);
        Beginning beginning(card, random, shape, step, 1);
        const auto us = measure_launches(card.context, 16, kRounds, [&](int i) {
                          mix(context, step, beginning, choose, i);
                        }).each_us;
        std::printf("layer %ld BF16 %s: %.1f us\n", tokens, choose ? "chosen" : "everything", us);
      }
    }
  }
  // The same among the wide products themselves, through which instructions leave the caches too: what it adds to them.
  void between() {
    for (const int64_t tokens : {1024, 8192, 65536}) {
      if (only != 0 && tokens != only) continue;
      for (const KvType type : {KvType::kBF16, KvType::kInt8}) {
        for (const bool choose : {false, true}) {
          AttentionShape shape;
          shape.type = type;
          shape.kv_heads = choose ? 2 : 4;
          PagedContext context(card, shape, tokens);
          std::printf("between %ld %s %s:", tokens, name(type), choose ? "chosen" : "everything");
          for (const int64_t count : {1, 4}) {
            Step step(card, random, context, count);
            Beginning beginning(card, random, shape, step, count);
            WideProducts wide(card, shape, choose, count);
            const auto time = [&](bool mixes) {
              return measure_launches(card.context, 16, kRounds,
                                      [&](int i) {
                                        wide.before(beginning);
                                        if (mixes) mix(context, step, beginning, choose, i);
                                        wide.after(step);
                                      })
                  .each_us;
            };
            const double without = time(false);
            const double with = time(true);
            std::printf("  %ld col %.2f us (of %.1f)", count, with - without, with);
          }
          std::printf("\n");
        }
      }
    }
  }
  void inputs() {
    AttentionShape shape;
    for (const KvType type : {KvType::kInt8, KvType::kBF16}) {
      shape.type = type;
      PagedContext context(card, shape, 65536);
      for (const int64_t count : {1, 4, 2048}) {
        Step step(card, random, context, count);
        Beginning beginning(card, random, shape, step, count);
        const double inputs_us =
            measure_launches(card.context, 16, kRounds, [&](int i) {
              attention_inputs(card.context, step.columns, beginning.attention_args(context.layer(i)));
            }).each_us;
        const double index_us = measure_launches(card.context, 16, kRounds, [&](int i) {
                                  index_inputs(card.context, step.columns, beginning.index_args(context.layer(i)));
                                }).each_us;
        std::printf("inputs %s %ld columns: attention %.1f us, index %.1f us\n", name(type), count, inputs_us,
                    index_us);
      }
    }
  }
};

}  // namespace
}  // namespace tandem::ops::cuda

int main(int argc, char** argv) {
  testing::InitGoogleTest();  // which random data print their seed through
  tandem::ops::cuda::Bench bench;
  std::set<std::string> wanted(argv + 1, argv + argc);
  for (const std::string& word : std::set<std::string>(wanted)) {
    if (word.find_first_not_of("0123456789") != std::string::npos) continue;
    bench.only = std::stoll(word);
    wanted.erase(word);
  }
  const auto want = [&](const char* what) { return wanted.empty() || wanted.count(what) > 0; };
  if (want("decode")) bench.decode();
  if (want("sparse")) bench.sparse();
  if (want("select")) bench.select();
  if (want("layer")) bench.layer();
  if (want("between")) bench.between();
  if (want("inputs")) bench.inputs();
  if (want("prefill")) bench.prefill();
  return 0;
}
