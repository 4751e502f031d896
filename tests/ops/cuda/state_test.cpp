// Operations of state on the card against the host's: the recurrences, whose state must not depend on how steps are
// cut, on padding, or on what stands beside them.
#include <cmath>
#include <gtest/gtest.h>

#include "base/pool.h"
#include "ops/cuda/delta_net.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/ngram.h"
#include "ops/host/host_ops.h"
#include "tests/ops/cuda/skip_without_card.h"
#include "tests/ops/cuda/state_card.h"

namespace tandem::ops::cuda {
namespace {

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// The columns that are tokens, of an array with `width` values a column.
std::vector<float> held(const BothColumns& columns, const std::vector<float>& values, int64_t width) {
  std::vector<float> kept;
  for (int64_t c = 0; c < columns.count(); ++c) {
    if (!columns.holds(c)) continue;
    kept.insert(kept.end(), values.begin() + c * width, values.begin() + (c + 1) * width);
  }
  return kept;
}

std::vector<float> part(const std::vector<float>& values, int64_t begin, int64_t end, int64_t width) {
  return {values.begin() + begin * width, values.begin() + end * width};
}

struct DeltaShape {
  int64_t key_heads, value_heads, key_dim, value_dim;
  int64_t stride() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t out_width() const { return value_heads * value_dim; }
  int64_t state_floats() const { return value_heads * key_dim * value_dim; }
};
constexpr DeltaShape kDemo{2, 6, 128, 128};
constexpr DeltaShape kReal{16, 48, 128, 128};
const std::vector<DeltaShape> kShapes = {kDemo,           kReal,           {2, 6, 32, 48},
                                         {1, 2, 256, 64}, {2, 2, 208, 16}, {3, 3, 96, 80}};

// The state begins behind some other floats of the slot.
constexpr int64_t kStateOffset = 64;

struct DeltaInputs {
  DeltaShape shape;
  std::vector<float> qkv, a, b, a_log, dt_bias;

  DeltaInputs(RandomData& random, const DeltaShape& shape_, int64_t tokens)
      : shape(shape_),
        qkv(random.normal(tokens * shape.stride())),
        a(random.normal(tokens * shape.value_heads)),
        b(random.normal(tokens * shape.value_heads)),
        a_log(random.normal(shape.value_heads, 0.5F)),
        dt_bias(random.normal(shape.value_heads, 0.5F)) {}
  DeltaInputs columns(int64_t begin, int64_t end) const {
    DeltaInputs some = *this;
    some.qkv = part(qkv, begin, end, shape.stride());
    some.a = part(a, begin, end, shape.value_heads);
    some.b = part(b, begin, end, shape.value_heads);
    return some;
  }
  Ops::DeltaNet arguments(const float* qkv_at, const float* a_at, const float* b_at, const float* a_log_at,
                          const float* dt_bias_at, float* out) const {
    return {.qkv = qkv_at,
            .a = a_at,
            .b = b_at,
            .a_log = a_log_at,
            .dt_bias = dt_bias_at,
            .key_heads = shape.key_heads,
            .value_heads = shape.value_heads,
            .key_dim = shape.key_dim,
            .value_dim = shape.value_dim,
            .state = kStateOffset * 4,
            .out = out};
  }
};

std::vector<float> run_on_card(StateCard& card, const BothColumns& columns, const DeltaInputs& in) {
  Array<float> qkv(card, in.qkv), a(card, in.a), b(card, in.b), a_log(card, in.a_log), dt_bias(card, in.dt_bias);
  Array<float> out(card, poisoned(columns.count() * in.shape.out_width()));
  delta_net(card.context, columns.device(),
            in.arguments(qkv.data(), a.data(), b.data(), a_log.data(), dt_bias.data(), out.data()));
  return out.get();
}

std::vector<float> run_on_host(Ops& host, const BothColumns& columns, const DeltaInputs& in) {
  auto out = poisoned(columns.count() * in.shape.out_width());
  host.delta_net(columns.host(),
                 in.arguments(in.qkv.data(), in.a.data(), in.b.data(), in.a_log.data(), in.dt_bias.data(), out.data()));
  return out;
}

int64_t slot_floats(const DeltaShape& shape) {
  return kStateOffset + shape.state_floats() + 32;
}

struct DeltaCase {
  DeltaShape shape;
  std::vector<RunShape> runs;
  int64_t each;
  bool advance = true;
};

void compare_with_host(const DeltaCase& test) {
  SCOPED_TRACE(testing::Message() << test.shape.value_heads << " heads of " << test.shape.key_dim << " x "
                                  << test.shape.value_dim << ", " << test.runs.size() << " runs of " << test.each
                                  << (test.advance ? "" : ", not advancing"));
  RandomData random;
  StateCard card;
  base::WorkerPool pool(2);
  host::HostOps host(pool, true);
  BothColumns columns(card, random, test.runs, test.each, slot_floats(test.shape), test.advance);
  const auto before = columns.host_slots;
  const DeltaInputs in(random, test.shape, columns.count());
  const auto out = run_on_card(card, columns, in);
  const auto want = run_on_host(host, columns, in);
  const double error =
      relative_error(held(columns, out, test.shape.out_width()), doubles(held(columns, want, test.shape.out_width())));
  EXPECT_LT(error, 3e-5);
  double state_error = 0;
  for (size_t r = 0; r < test.runs.size(); ++r) {
    const auto state = columns.slots[r]->get();
    state_error = std::max(state_error, relative_error(state, doubles(columns.host_slots[r])));
    EXPECT_EQ(part(state, 0, kStateOffset, 1), part(before[r], 0, kStateOffset, 1));
    EXPECT_EQ(part(state, slot_floats(test.shape) - 32, slot_floats(test.shape), 1),
              part(before[r], slot_floats(test.shape) - 32, slot_floats(test.shape), 1));
    if (!test.advance || test.runs[r].tokens == 0) {
      EXPECT_EQ(state, before[r]);
    }
  }
  EXPECT_LT(state_error, 3e-5);
  std::printf("  %2lld heads %lld x %lld, %zu x %lld: out %.1e, state %.1e\n",
              static_cast<long long>(test.shape.value_heads), static_cast<long long>(test.shape.key_dim),
              static_cast<long long>(test.shape.value_dim), test.runs.size(), static_cast<long long>(test.each), error,
              state_error);
}

TEST(CudaDeltaNet, StepsFollowTheHost) {
  SKIP_WITHOUT_A_CARD();
  for (const DeltaShape& shape : kShapes) {
    compare_with_host({shape, {{5, 1}}, 1});
    compare_with_host({shape, {{0, 8}}, 8});
    compare_with_host({shape, {{62, 3}, {7, 4}, {0, 0}}, 4});
    compare_with_host({shape, {{62, 3}, {7, 4}}, 4, false});
  }
  compare_with_host({kDemo, {{1, 5}, {2, 17}, {60, 0}, {63, 20}}, 20});
}

TEST(CudaDeltaNet, ChunksFollowTheHost) {
  SKIP_WITHOUT_A_CARD();
  for (const DeltaShape& shape : kShapes) {
    compare_with_host({shape, {{0, 64}}, 64});
    compare_with_host({shape, {{37, 330}}, 330});
  }
  compare_with_host({kDemo, {{0, 128}, {64, 70}, {100, 90}, {3, 0}}, 130});
  compare_with_host({kDemo, {{0, 128}, {64, 70}, {100, 90}}, 130, false});
  compare_with_host({kDemo, {{1, 1500}}, 1500});
}

TEST(CudaDeltaNet, AWindowHasTheBitsOfSingleStepsAndOfItsRunAlone) {
  SKIP_WITHOUT_A_CARD();
  RandomData random;
  StateCard card;
  for (const DeltaShape& shape : kShapes) {
    for (const int64_t each : {2, 4, 8}) {
      std::vector<RunShape> runs;
      for (int64_t r = 0; r < kMostFewColumns / each; ++r) runs.push_back({61 + r, each});
      BothColumns together(card, random, runs, each, slot_floats(shape));
      const DeltaInputs in(random, shape, together.count());
      const auto out = run_on_card(card, together, in);
      for (size_t r = 0; r < runs.size(); ++r) {
        std::vector<float> slot = together.host_slots[r];
        for (int64_t t = 0; t < each; ++t) {
          BothColumns alone(card, random, {{runs[r].position + t, 1}}, 1, slot_floats(shape));
          alone.slots[0]->set(slot);
          const int64_t c = static_cast<int64_t>(r) * each + t;
          EXPECT_EQ(run_on_card(card, alone, in.columns(c, c + 1)), part(out, c, c + 1, shape.out_width()));
          slot = alone.slots[0]->get();
        }
        EXPECT_EQ(together.slots[r]->get(), slot);
      }
    }
  }
}

// Inputs of gated_delta_net(). Gates' matrices are BF16, or FP32 with the same values.
struct GatedInputs {
  DeltaShape shape;
  int64_t hidden;
  bool fp32;
  std::vector<float> x, qkv, z, conv, norm, a_log, dt_bias, a_values, b_values;
  std::vector<uint16_t> a_bits, b_bits;

  GatedInputs(RandomData& random, const DeltaShape& shape_, int64_t hidden_, int64_t tokens, bool fp32_ = false)
      : shape(shape_),
        hidden(hidden_),
        fp32(fp32_),
        x(random.normal(tokens * hidden)),
        qkv(random.normal(tokens * shape.stride())),
        z(random.normal(tokens * shape.out_width())),
        conv(random.normal(4 * shape.stride())),
        norm(random.normal(shape.value_dim)),
        a_log(random.normal(shape.value_heads, 0.5F)),
        dt_bias(random.normal(shape.value_heads, 0.5F)) {
    const float scale = 1.0F / std::sqrt(static_cast<float>(hidden));
    a_bits = random.normal_bf16(shape.value_heads * hidden, scale);
    b_bits = random.normal_bf16(shape.value_heads * hidden, scale);
    for (const uint16_t bits : a_bits) a_values.push_back(numeric::bf16_to_float(bits));
    for (const uint16_t bits : b_bits) b_values.push_back(numeric::bf16_to_float(bits));
  }
  GatedInputs columns(int64_t begin, int64_t end) const {
    GatedInputs some = *this;
    some.x = part(x, begin, end, hidden);
    some.qkv = part(qkv, begin, end, shape.stride());
    some.z = part(z, begin, end, shape.out_width());
    return some;
  }
  int64_t history() const { return kStateOffset + shape.state_floats(); }
  int64_t slot_floats() const { return history() + 3 * shape.stride() + 32; }
  Weight weight(const void* data) const {
    return {.data = data,
            .format = fp32 ? WeightFormat::kF32 : WeightFormat::kBF16,
            .rows = shape.value_heads,
            .inputs = hidden};
  }
  // What does not depend on where the arrays are.
  Ops::GatedDeltaNet arguments() const {
    Ops::GatedDeltaNet args;
    args.history = history() * 4;
    args.sigmoid = hidden % 3 == 0;
    args.net.key_heads = shape.key_heads;
    args.net.value_heads = shape.value_heads;
    args.net.key_dim = shape.key_dim;
    args.net.value_dim = shape.value_dim;
    args.net.state = kStateOffset * 4;
    return args;
  }
};

// Whether the kernel served the shape; else `out` is empty.
bool run_gated_on_card(StateCard& card, const BothColumns& columns, const GatedInputs& in, std::vector<float>& out) {
  Array<float> x(card, in.x), qkv(card, in.qkv), z(card, in.z), conv(card, in.conv), norm(card, in.norm),
      a_log(card, in.a_log), dt_bias(card, in.dt_bias), a_values(card, in.a_values), b_values(card, in.b_values);
  Array<uint16_t> a_bits(card, in.a_bits), b_bits(card, in.b_bits);
  Array<float> to(card, poisoned(columns.count() * in.shape.out_width()));
  Array<float> a(card, poisoned(columns.count() * in.shape.value_heads)),
      b(card, poisoned(columns.count() * in.shape.value_heads));
  Ops::GatedDeltaNet args = in.arguments();
  args.x = x.data();
  args.a_proj = in.weight(in.fp32 ? static_cast<const void*>(a_values.data()) : a_bits.data());
  args.b_proj = in.weight(in.fp32 ? static_cast<const void*>(b_values.data()) : b_bits.data());
  args.qkv = qkv.data();
  args.conv = conv.data();
  args.z = z.data();
  args.norm = norm.data();
  args.net.a_log = a_log.data();
  args.net.dt_bias = dt_bias.data();
  args.net.out = to.data();
  args.a = a.data();
  args.b = b.data();
  const bool served = gated_delta_net(card.context, columns.device(), args);
  out = served ? to.get() : std::vector<float>();
  return served;
}

std::vector<float> run_gated_on_host(Ops& host, const BothColumns& columns, const GatedInputs& in) {
  auto out = poisoned(columns.count() * in.shape.out_width());
  auto convolved = poisoned(columns.count() * in.shape.stride());
  auto a = poisoned(columns.count() * in.shape.value_heads);
  auto b = a;
  Ops::GatedDeltaNet args = in.arguments();
  args.x = in.x.data();
  args.a_proj = in.weight(in.fp32 ? static_cast<const void*>(in.a_values.data()) : in.a_bits.data());
  args.b_proj = in.weight(in.fp32 ? static_cast<const void*>(in.b_values.data()) : in.b_bits.data());
  args.qkv = in.qkv.data();
  args.conv = in.conv.data();
  args.z = in.z.data();
  args.norm = in.norm.data();
  args.net.a_log = in.a_log.data();
  args.net.dt_bias = in.dt_bias.data();
  args.net.out = out.data();
  args.convolved = convolved.data();
  args.a = a.data();
  args.b = b.data();
  host.gated_delta_net(columns.host(), args);
  return out;
}

void compare_gated(const DeltaCase& test, int64_t hidden, bool fp32 = false) {
  SCOPED_TRACE(testing::Message() << test.shape.value_heads << " heads, hidden " << hidden << ", " << test.runs.size()
                                  << " runs of " << test.each << (test.advance ? "" : ", not advancing")
                                  << (fp32 ? ", FP32" : ""));
  RandomData random;
  StateCard card;
  base::WorkerPool pool(2);
  host::HostOps host(pool, true);
  const GatedInputs in(random, test.shape, hidden, static_cast<int64_t>(test.runs.size()) * test.each, fp32);
  BothColumns columns(card, random, test.runs, test.each, in.slot_floats(), test.advance);
  const auto before = columns.host_slots;
  std::vector<float> out;
  ASSERT_TRUE(run_gated_on_card(card, columns, in, out));
  const auto want = run_gated_on_host(host, columns, in);
  const int64_t width = test.shape.out_width();
  const double error = relative_error(held(columns, out, width), doubles(held(columns, want, width)));
  EXPECT_LT(error, 3e-5);
  for (int64_t c = 0; c < columns.count(); ++c) {
    if (columns.holds(c)) continue;
    EXPECT_EQ(part(out, c, c + 1, width), std::vector<float>(static_cast<size_t>(width), 0.0F));
  }
  double state_error = 0;
  for (size_t r = 0; r < test.runs.size(); ++r) {
    const auto slot = columns.slots[r]->get();
    if (!test.advance || test.runs[r].tokens == 0) {
      EXPECT_EQ(slot, before[r]);
      continue;
    }
    const auto& host_slot = columns.host_slots[r];
    state_error = std::max(state_error, relative_error(part(slot, kStateOffset, in.history(), 1),
                                                       doubles(part(host_slot, kStateOffset, in.history(), 1))));
    // The history is inputs alone.
    EXPECT_EQ(part(slot, 0, kStateOffset, 1), part(before[r], 0, kStateOffset, 1));
    EXPECT_EQ(part(slot, in.history(), in.slot_floats(), 1), part(host_slot, in.history(), in.slot_floats(), 1));
  }
  EXPECT_LT(state_error, 3e-5);
  std::printf("  gated, %2lld heads, %zu x %lld: out %.1e, state %.1e\n",
              static_cast<long long>(test.shape.value_heads), test.runs.size(), static_cast<long long>(test.each),
              error, state_error);
}

TEST(CudaGatedDeltaNet, OneLaunchFollowsTheHost) {
  SKIP_WITHOUT_A_CARD();
  for (const auto& [shape, hidden] : std::vector<std::pair<DeltaShape, int64_t>>{
           {kDemo, 256}, {kReal, 5120}, {kReal, 2560}, {{3, 3, 128, 128}, 300}, {{1, 4, 128, 128}, 1028}}) {
    compare_gated({shape, {{5, 1}}, 1}, hidden);
    for (int64_t each = 2; each <= 8; ++each) compare_gated({shape, {{0, each}}, each}, hidden);
    compare_gated({shape, {{62, 3}, {7, 4}}, 4}, hidden);
    compare_gated({shape, {{62, 1}, {7, 2}, {0, 0}}, 2}, hidden);
    compare_gated({shape, {{9, 5}}, 8}, hidden);
    compare_gated({shape, {{62, 3}, {7, 4}}, 4, false}, hidden);
    compare_gated({shape, {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 0}, {8, 1}}, 1}, hidden);
    compare_gated({shape, {{5, 1}}, 1}, hidden, true);
    compare_gated({shape, {{3, 2}, {9, 3}}, 3}, hidden, true);
    compare_gated({shape, {{3, 7}}, 7}, hidden, true);
  }
}

TEST(CudaGatedDeltaNet, LeavesOtherShapesToTheOperationsThatItIsMadeOf) {
  SKIP_WITHOUT_A_CARD();
  RandomData random;
  StateCard card;
  std::vector<float> out;
  const auto served = [&](const DeltaShape& shape, int64_t runs, int64_t each) {
    const GatedInputs in(random, shape, 256, runs * each);
    BothColumns columns(card, random, std::vector<RunShape>(static_cast<size_t>(runs), {0, each}), each,
                        in.slot_floats());
    return run_gated_on_card(card, columns, in, out);
  };
  EXPECT_TRUE(served(kDemo, 1, 8));
  EXPECT_FALSE(served(kDemo, 1, 9));
  EXPECT_FALSE(served(kDemo, 3, 3));
  EXPECT_FALSE(served({2, 6, 64, 128}, 1, 1));
  EXPECT_FALSE(served({2, 6, 128, 64}, 1, 1));
  EXPECT_FALSE(served({1, 5, 128, 128}, 1, 1));
  card.context.tensor_cores = false;
  EXPECT_FALSE(served(kDemo, 1, 1));
}

TEST(CudaGatedDeltaNet, AWindowHasTheBitsOfSingleStepsAndOfItsRunAlone) {
  SKIP_WITHOUT_A_CARD();
  RandomData random;
  StateCard card;
  for (const bool fp32 : {false, true}) {
    for (const int64_t each : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(testing::Message() << each << (fp32 ? " FP32" : ""));
      std::vector<RunShape> runs;
      for (int64_t r = 0; r < kMostFewColumns / each; ++r) runs.push_back({61 + r, each});
      const GatedInputs in(random, kReal, 2560, static_cast<int64_t>(runs.size()) * each, fp32);
      BothColumns together(card, random, runs, each, in.slot_floats());
      std::vector<float> out, alone_out;
      ASSERT_TRUE(run_gated_on_card(card, together, in, out));
      for (size_t r = 0; r < runs.size(); ++r) {
        std::vector<float> slot = together.host_slots[r];
        for (int64_t t = 0; t < each; ++t) {
          BothColumns alone(card, random, {{runs[r].position + t, 1}}, 1, in.slot_floats());
          alone.slots[0]->set(slot);
          const int64_t c = static_cast<int64_t>(r) * each + t;
          ASSERT_TRUE(run_gated_on_card(card, alone, in.columns(c, c + 1), alone_out));
          EXPECT_EQ(alone_out, part(out, c, c + 1, kReal.out_width())) << "run " << r << ", token " << t;
          slot = alone.slots[0]->get();
        }
        EXPECT_EQ(together.slots[r]->get(), slot) << "run " << r;
      }
    }
  }
}

struct ConvolutionCase {
  int64_t channels, kernel, dilation;
  std::vector<RunShape> runs;
  int64_t each;
  bool advance = true;
};

// The card's convolution has the host's bits.
void compare_convolution(const ConvolutionCase& test) {
  SCOPED_TRACE(testing::Message() << test.channels << " channels, " << test.kernel << " taps, dilation "
                                  << test.dilation << ", " << test.runs.size() << " runs of " << test.each);
  RandomData random;
  StateCard card;
  base::WorkerPool pool(2);
  host::HostOps host(pool, true);
  const int64_t past = (test.kernel - 1) * test.dilation * test.channels;
  BothColumns columns(card, random, test.runs, test.each, past + 24, test.advance);
  const auto x = random.normal(columns.count() * test.channels);
  const auto weight = random.normal(test.kernel * test.channels);
  Array<float> x_array(card, x), weight_array(card, weight);
  Array<float> out(card, poisoned(columns.count() * test.channels));
  causal_conv(card.context, columns.device(), x_array.data(), test.channels, weight_array.data(), test.kernel,
              test.dilation, 64, out.data());
  auto want = poisoned(columns.count() * test.channels);
  host.causal_conv(columns.host(), x.data(), test.channels, weight.data(), test.kernel, test.dilation, 64, want.data());
  EXPECT_EQ(held(columns, out.get(), test.channels), held(columns, want, test.channels));
  for (size_t r = 0; r < test.runs.size(); ++r) EXPECT_EQ(columns.slots[r]->get(), columns.host_slots[r]);
}

TEST(CudaConvolution, HasTheHostsBitsAndMovesTheHistory) {
  SKIP_WITHOUT_A_CARD();
  for (const int64_t channels : {int64_t{1280}, int64_t{10240}, int64_t{77}}) {
    for (const int64_t dilation : {1, 3}) {
      for (int64_t each = 1; each <= 8; ++each) {
        compare_convolution({channels, 4, dilation, {{5, each}}, each});
      }
      compare_convolution({channels, 4, dilation, {{0, 2}, {9, 0}, {3, 4}}, 4});
      compare_convolution({channels, 4, dilation, {{0, 2}, {9, 0}, {3, 4}}, 4, false});
      compare_convolution({channels, 4, dilation, {{0, 9}, {9, 70}, {3, 2}, {4, 0}}, 70});
      compare_convolution({channels, 4, dilation, {{0, 9}, {9, 70}, {3, 2}}, 70, false});
    }
    compare_convolution({channels, 3, 2, {{0, 3}, {9, 1}}, 3});
    compare_convolution({channels, 7, 1, {{0, 20}, {9, 2}}, 20});
  }
}

struct NgramCase {
  int64_t hidden, embed;
  std::vector<RunShape> runs;
  int64_t each;
  bool advance = true;
};

void compare_ngram(const NgramCase& test) {
  SCOPED_TRACE(testing::Message() << "hidden " << test.hidden << ", " << test.runs.size() << " runs of " << test.each);
  constexpr int64_t kStreams = 4;
  RandomData random;
  StateCard card;
  base::WorkerPool pool(2);
  host::HostOps host(pool, true);
  const int64_t width = kStreams * test.hidden;
  BothColumns columns(card, random, test.runs, test.each, 9 * width + 16, test.advance);
  const auto before = columns.host_slots;
  BothWeights key(card, random.normal_bf16(width * test.embed, 0.05F), width, test.embed);
  BothWeights value(card, random.normal_bf16(test.hidden * test.embed, 0.05F), test.hidden, test.embed);
  const auto norm_key = random.normal(width, 0.1F);
  const auto norm_query = random.normal(width, 0.1F);
  const auto norm_conv = random.normal(width, 0.1F);
  const auto conv = random.normal(4 * width, 0.5F);
  Array<float> norm_key_array(card, norm_key), norm_query_array(card, norm_query), norm_conv_array(card, norm_conv),
      conv_array(card, conv);
  const auto rows = random.normal(columns.count() * test.embed);
  auto state = random.normal(columns.count() * width);
  Array<float> rows_array(card, rows), state_array(card, state);
  ngram_memory(card.context, columns.device(),
               {key.device, value.device, norm_key_array.data(), norm_query_array.data(), norm_conv_array.data(),
                conv_array.data(), 4, 3},
               rows_array.data(), kStreams, test.hidden, 1e-6F, 0, state_array.data());
  host.ngram_memory(columns.host(),
                    {key.host, value.host, norm_key.data(), norm_query.data(), norm_conv.data(), conv.data(), 4, 3},
                    rows.data(), kStreams, test.hidden, 1e-6F, 0, state.data());
  EXPECT_LT(relative_error(held(columns, state_array.get(), width), doubles(held(columns, state, width))), 1e-5);
  for (size_t r = 0; r < test.runs.size(); ++r) {
    const auto slot = columns.slots[r]->get();
    EXPECT_LT(relative_error(slot, doubles(columns.host_slots[r])), 1e-5);
    if (!test.advance) {
      EXPECT_EQ(slot, before[r]);
    }
  }
}

TEST(CudaNgramMemory, FollowsTheHost) {
  SKIP_WITHOUT_A_CARD();
  for (const auto& [hidden, embed] : {std::pair<int64_t, int64_t>{256, 256}, {2560, 2560}}) {
    compare_ngram({hidden, embed, {{0, 1}}, 1});
    compare_ngram({hidden, embed, {{0, 8}}, 8});
    compare_ngram({hidden, embed, {{0, 2}, {8, 4}}, 4});
    compare_ngram({hidden, embed, {{0, 2}, {8, 4}}, 4, false});
    compare_ngram({hidden, embed, {{0, 20}}, 20});
  }
}

}  // namespace
}  // namespace tandem::ops::cuda
