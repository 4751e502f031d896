// The routed experts on a card against those of the processor: the same bits wherever activations are quantised.
#include "ops/cuda/experts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "device/buffer.h"
#include "device/cards.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/experts_bf16.h"
#include "ops/host/host_ops.h"
#include "tests/ops/cuda/experts_data.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::cuda {
namespace {

constexpr ExpertFormat kFormats[] = {ExpertFormat::kNvfp4,  ExpertFormat::kFp8Block, ExpertFormat::kIq2s,
                                     ExpertFormat::kIq3xxs, ExpertFormat::kIq3s,     ExpertFormat::kIq4xs,
                                     ExpertFormat::kIq4nl,  ExpertFormat::kQ2_0};
constexpr float kCanary = 12345.5F;

struct Shape {
  int64_t experts = 12;
  int64_t inner = 256;
  int64_t hidden = 512;
  int64_t top_k = 4;
};

// A layer of random experts on both sides.
struct Layer {
  std::vector<std::byte> records;
  std::vector<float> scalars;
  ExpertTable table;
  device::Buffer device_records, device_scalars;

  Layer(RandomData& random, device::Device& card, const numeric::ExpertFormats& formats, const Shape& shape,
        int64_t scalars_each = 6, bool extreme = false) {
    table.experts = shape.experts;
    table.inner = shape.inner;
    table.hidden = shape.hidden;
    table.place(formats);
    records = RandomRecords(random.engine(), extreme).make(table.record, shape.experts, shape.inner, shape.hidden);
    scalars = random_scalars(random.engine(), shape.experts, scalars_each);
    table.records = records.data();
    table.scalars = scalars.data();
    table.scalars_each = scalars_each;
    device_records = device::Buffer(card, static_cast<int64_t>(records.size()));
    device_scalars = device::Buffer(card, static_cast<int64_t>(scalars.size() * sizeof(float)));
    card.upload(device_records.data(), records.data(), device_records.bytes());
    card.upload(device_scalars.data(), scalars.data(), device_scalars.bytes());
  }
  ExpertTable on_device() const {
    ExpertTable other = table;
    other.records = device_records.data();
    other.scalars = device_scalars.as<float>();
    return other;
  }
};

struct Batch {
  int64_t tokens = 0;
  std::vector<float> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int32_t> faults;
};

struct Result {
  std::vector<float> lower, upper;
  std::vector<int32_t> faults;
};

class CudaExperts : public testing::Test {
 protected:
  void SetUp() override {
    if (device::cards().empty()) GTEST_SKIP() << "no card";
    card_ = device::open_card(0);
  }

  // Distinct experts for each token, from the first `used`; most tokens like the same few.
  Batch batch(int64_t tokens, const Shape& shape, int64_t used) {
    Batch out;
    out.tokens = tokens;
    out.x = random_.normal(tokens * shape.hidden);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> all;
      for (int64_t e = 0; e < used; ++e) all.push_back(static_cast<int32_t>(e * shape.experts / used));
      std::shuffle(all.begin() + (t % 3 == 0 ? shape.top_k / 2 : 0), all.end(), random_.engine());
      for (int64_t k = 0; k < shape.top_k; ++k) {
        out.ids.push_back(all[static_cast<size_t>(k)]);
        out.weights.push_back(static_cast<float>(random_.between(1, 1000)) / 1000.0F);
      }
    }
    out.faults.assign(static_cast<size_t>(tokens), -1);
    return out;
  }

  Result on_host(const Layer& layer, const Batch& batch, int64_t top_k, bool quantise, bool round) {
    Result out;
    out.lower = poisoned(batch.tokens * layer.table.hidden);
    out.upper = out.lower;
    out.faults = batch.faults;
    host::HostOps ops(pool_, round);
    ops.experts({.x = batch.x.data(),
                 .tokens = batch.tokens,
                 .top_k = top_k,
                 .ids = batch.ids.data(),
                 .weights = batch.weights.data(),
                 .table = layer.table,
                 .quantise_activations = quantise,
                 .lower = out.lower.data(),
                 .upper = out.upper.data(),
                 .faults = out.faults.data(),
                 .fault = 7});
    return out;
  }

  Result on_card(const Layer& layer, const Batch& batch, int64_t top_k, bool quantise, bool round) {
    const int64_t floats = batch.tokens * layer.table.hidden;
    constexpr int64_t kBehind = 64;
    const auto put = [&](const auto& values) {
      device::Buffer buffer(*card_, static_cast<int64_t>(values.size() * sizeof values[0]));
      card_->upload(buffer.data(), values.data(), buffer.bytes());
      return buffer;
    };
    const auto x = put(batch.x);
    const auto ids = put(batch.ids);
    const auto weights = put(batch.weights);
    auto faults = put(batch.faults);
    auto start = poisoned(floats);
    start.resize(static_cast<size_t>(floats + kBehind), kCanary);
    auto lower = put(start);
    auto upper = put(start);
    Ops::Experts args{.x = x.as<float>(),
                      .tokens = batch.tokens,
                      .top_k = top_k,
                      .ids = ids.as<int32_t>(),
                      .weights = weights.as<float>(),
                      .table = layer.on_device(),
                      .quantise_activations = quantise,
                      .lower = lower.as<float>(),
                      .upper = upper.as<float>(),
                      .faults = faults.as<int32_t>(),
                      .fault = 7};
    const auto& cuda = dynamic_cast<device::cuda::CudaDevice&>(*card_);
    Scratch planning = Scratch::planning();
    Context plan{.stream = cuda.stream(), .scratch = planning, .multiprocessors = cuda.card().multiprocessors};
    plan.round_inputs = round;
    plan.tensor_cores = fast_;
    plan.bf16_experts = bf16_;
    experts(plan, args);
    // Scratch holds anything before; behind it nothing may change.
    device::Buffer memory(*card_, planning.most() + 256);
    std::vector<std::byte> dirt(static_cast<size_t>(memory.bytes()), std::byte{0xC7});
    card_->upload(memory.data(), dirt.data(), memory.bytes());
    Scratch scratch(memory.data(), planning.most());
    Context context{.stream = cuda.stream(), .scratch = scratch, .multiprocessors = cuda.card().multiprocessors};
    context.round_inputs = round;
    context.tensor_cores = fast_;
    context.bf16_experts = bf16_;
    EXPECT_EQ(expert::takes_bf16(context, args), bf16_);
    experts(context, args);

    Result out;
    out.lower.resize(start.size());
    out.upper.resize(start.size());
    out.faults.resize(batch.faults.size());
    card_->download(out.lower.data(), lower.data(), lower.bytes());
    card_->download(out.upper.data(), upper.data(), upper.bytes());
    card_->download(out.faults.data(), faults.data(), faults.bytes());
    card_->download(dirt.data(), memory.data(), memory.bytes());
    for (size_t i = dirt.size() - 256; i < dirt.size(); ++i)
      EXPECT_EQ(dirt[i], std::byte{0xC7}) << "behind the scratch";
    for (auto* half : {&out.lower, &out.upper}) {
      for (int64_t i = floats; i < floats + kBehind; ++i) EXPECT_EQ((*half)[static_cast<size_t>(i)], kCanary);
      half->resize(static_cast<size_t>(floats));
    }
    return out;
  }

  // Bits of all columns without a fault, and the faults.
  void expect_same(const Result& got, const Result& want, int64_t hidden, const std::string& what) {
    ASSERT_EQ(got.faults, want.faults) << what;
    for (size_t t = 0; t < want.faults.size(); ++t) {
      if (want.faults[t] >= 0) continue;
      const auto at = t * static_cast<size_t>(hidden);
      for (const bool lower : {true, false}) {
        const float* g = (lower ? got.lower : got.upper).data() + at;
        const float* w = (lower ? want.lower : want.upper).data() + at;
        int64_t i = 0;
        while (i < hidden && std::bit_cast<uint32_t>(g[i]) == std::bit_cast<uint32_t>(w[i])) ++i;
        if (i == hidden) continue;
        FAIL() << what << ": column " << t << (lower ? ", lower half" : ", upper half") << ", channel " << i << ": "
               << g[i] << ", not " << w[i];
      }
    }
  }

  void compare(const Layer& layer, const Batch& batch, int64_t top_k, const std::string& what) {
    const Result want = on_host(layer, batch, top_k, true, true);
    for (const bool fast : {true, false}) {
      fast_ = fast;
      expect_same(on_card(layer, batch, top_k, true, true), want, layer.table.hidden,
                  what + (fast ? "" : ", portable kernels"));
    }
    fast_ = true;
  }

  // In BF16 products: sums of exact products in FP32 differ in their last places, and now and then one of down's inputs
  // lands on the other side of a rounding, which moves a token by about a hundredth of its norm.
  void compare_bf16(const Layer& layer, const Batch& batch, int64_t top_k, double tolerance, const std::string& what) {
    const Result want = on_host(layer, batch, top_k, true, true);
    bf16_ = true;
    const Result got = on_card(layer, batch, top_k, true, true);
    const Result again = on_card(layer, batch, top_k, true, true);
    bf16_ = false;
    expect_same(again, got, layer.table.hidden, what + ", once more");
    ASSERT_EQ(got.faults, want.faults) << what;
    const int64_t hidden = layer.table.hidden;
    std::vector<double> errors;
    for (int64_t t = 0; t < batch.tokens; ++t) {
      double difference = 0;
      double norm = 0;
      for (int64_t i = t * hidden; i < (t + 1) * hidden; ++i) {
        for (const auto& [g, w] : {std::pair(&got.lower, &want.lower), std::pair(&got.upper, &want.upper)}) {
          const double value = (*w)[static_cast<size_t>(i)];
          difference += std::pow((*g)[static_cast<size_t>(i)] - value, 2);
          norm += value * value;
        }
      }
      errors.push_back(difference == 0 ? 0 : std::sqrt(difference / norm));
    }
    std::sort(errors.begin(), errors.end());
    EXPECT_LT(errors[errors.size() / 2], tolerance) << what;
    EXPECT_LT(errors.back(), std::max(0.1, 3 * tolerance)) << what;
    std::printf("%s: errors of tokens %.2e median, %.2e at 90 %%, %.2e at most\n", what.c_str(),
                errors[errors.size() / 2], errors[errors.size() * 9 / 10], errors.back());
  }

  bool fast_ = true;   // else the portable kernels alone
  bool bf16_ = false;  // experts of many columns in BF16 products
  RandomData random_;
  base::WorkerPool pool_{4};
  std::unique_ptr<device::Device> card_;
};

std::string name_of(const numeric::ExpertFormats& formats) {
  std::string name;
  for (const ExpertFormat format : formats) name += std::string(numeric::expert_format_name(format)) + " ";
  return name;
}

TEST_F(CudaExperts, GiveTheProcessorsBitsInEveryFormatForAnyColumns) {
  const Shape shape;
  for (const ExpertFormat format : kFormats) {
    for (const int64_t each : {6, 3}) {
      if (each == 3 && format != ExpertFormat::kNvfp4) continue;
      const Layer layer(random_, *card_, {format, format, format}, shape, each);
      for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 300}) {
        compare(
            layer, batch(tokens, shape, 9), shape.top_k,
            name_of({format, format, format}) + std::to_string(each) + " scalars, columns " + std::to_string(tokens));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaExperts, TakeAnotherFormatForEachMatrix) {
  const Shape shape;
  for (int round = 0; round < 24; ++round) {
    const auto any = [&] { return kFormats[random_.between(0, 7)]; };
    const numeric::ExpertFormats formats = {any(), any(), any()};
    const int64_t each = round % 3 == 0 ? 3 : 6;
    const Layer layer(random_, *card_, formats, shape, each);
    const int64_t tokens = round % 2 == 0 ? random_.between(1, 8) : random_.between(9, 40);
    compare(layer, batch(tokens, shape, 12), shape.top_k,
            name_of(formats) + std::to_string(each) + " scalars, columns " + std::to_string(tokens));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaExperts, HoldExtremeScalesAndRaggedShapes) {
  for (const ExpertFormat format : kFormats) {
    for (const Shape& shape :
         {Shape{5, 320, 192, 3}, Shape{3, 64, 64, 1}, Shape{17, 192, 704, 16}, Shape{4, 256, 768, 2}}) {
      if (shape.inner % numeric::expert_multiple(format) != 0 || shape.hidden % numeric::expert_multiple(format) != 0) {
        continue;
      }
      for (const int64_t each : {6, 3}) {
        const Layer layer(random_, *card_, {format, format, format}, shape, each, true);
        for (const int64_t tokens : {1, 5, 33}) {
          Batch b = batch(tokens, shape, shape.experts);
          for (float& v : b.x)
            v = random_.between(0, 20) == 0 ? 0.0F : v * std::exp2(static_cast<float>(random_.between(-20, 4)));
          std::fill_n(b.x.begin(), 32, 0.0F);
          for (float& p : b.weights) p *= 1e-6F;
          compare(layer, b, shape.top_k, name_of({format, format, format}) + std::to_string(tokens));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(CudaExperts, GiveTheProcessorsBitsInTheModelsShape) {
  const Shape shape{24, 640, 2560, 10};
  const ExpertFormat nvfp4 = ExpertFormat::kNvfp4;
  for (const int64_t each : {6, 3}) {
    const Layer layer(random_, *card_, {nvfp4, nvfp4, nvfp4}, shape, each);
    for (const int64_t tokens : {1, 2, 4, 7, 8, 9, 130}) {
      compare(layer, batch(tokens, shape, shape.experts), shape.top_k, std::to_string(tokens));
      if (HasFatalFailure()) return;
    }
  }
  const Layer mixed(random_, *card_, {ExpertFormat::kIq3s, ExpertFormat::kIq2s, ExpertFormat::kIq4nl}, shape);
  for (const int64_t tokens : {1, 8, 20}) {
    compare(mixed, batch(tokens, shape, shape.experts), shape.top_k, std::to_string(tokens));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaExperts, MarkFaultyColumnsAndKeepEarlierMarks) {
  const Shape shape;
  for (const ExpertFormat format : kFormats) {
    const Layer layer(random_, *card_, {format, format, format}, shape);
    for (const int64_t tokens : {6, 40}) {
      Batch b = batch(tokens, shape, 12);
      b.x[static_cast<size_t>(1 * shape.hidden + 77)] = std::numeric_limits<float>::quiet_NaN();
      b.x[static_cast<size_t>(2 * shape.hidden + 5)] = -std::numeric_limits<float>::infinity();
      b.x[static_cast<size_t>(3 * shape.hidden + 5)] = 1e38F;
      b.weights[static_cast<size_t>(4 * shape.top_k + 1)] = 1e30F;
      b.faults[2] = 3;
      b.faults[5] = 0;
      const Result want = on_host(layer, b, shape.top_k, true, true);
      const Result got = on_card(layer, b, shape.top_k, true, true);
      expect_same(got, want, shape.hidden, name_of({format, format, format}));
      EXPECT_EQ(got.faults[0], -1);
      EXPECT_EQ(got.faults[1], 7);
      EXPECT_EQ(got.faults[2], 3);
      EXPECT_EQ(got.faults[4], 7);
      EXPECT_EQ(got.faults[5], 0);
    }
  }
}

TEST_F(CudaExperts, AreCloseToTheProcessorWithActivationsAsTheyAre) {
  const Shape shape;
  std::vector<ExpertFormat> formats(std::begin(kFormats), std::end(kFormats));
  formats.push_back(ExpertFormat::kBF16);
  for (const ExpertFormat format : formats) {
    const Layer layer(random_, *card_, {format, format, format}, shape);
    for (const bool round : {false, true}) {
      const Batch all = batch(8, shape, 12);
      const Result want = on_host(layer, all, shape.top_k, false, round);
      const Result got = on_card(layer, all, shape.top_k, false, round);
      EXPECT_EQ(got.faults, want.faults);
      const std::vector<double> lower(want.lower.begin(), want.lower.end());
      // Sums of up to 512 products in FP32, in another order; rounded, a last place of BF16 in down's inputs now and
      // then.
      EXPECT_LT(relative_error(got.lower, lower), round ? 1e-3 : 1e-5) << name_of({format, format, format}) << round;
      // A column has the same bits alone.
      for (const int64_t t : {0, 3, 7}) {
        Batch one;
        one.tokens = 1;
        one.x.assign(all.x.begin() + t * shape.hidden, all.x.begin() + (t + 1) * shape.hidden);
        one.ids.assign(all.ids.begin() + t * shape.top_k, all.ids.begin() + (t + 1) * shape.top_k);
        one.weights.assign(all.weights.begin() + t * shape.top_k, all.weights.begin() + (t + 1) * shape.top_k);
        one.faults = {-1};
        const Result alone = on_card(layer, one, shape.top_k, false, round);
        for (int64_t i = 0; i < shape.hidden; ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(alone.lower[static_cast<size_t>(i)]),
                    std::bit_cast<uint32_t>(got.lower[static_cast<size_t>(t * shape.hidden + i)]))
              << "column " << t << ", channel " << i;
        }
      }
    }
  }
}

TEST_F(CudaExperts, InBf16AreCloseToTheCanonicalNumbers) {
  const ExpertFormat nvfp4 = ExpertFormat::kNvfp4;
  for (const Shape& shape :
       {Shape{12, 256, 512, 4}, Shape{5, 320, 192, 3}, Shape{40, 64, 64, 2}, Shape{24, 640, 2560, 10}}) {
    for (const int64_t each : {6, 3}) {
      const Layer layer(random_, *card_, {nvfp4, nvfp4, nvfp4}, shape, each);
      for (const int64_t tokens : {70, 200}) {
        compare_bf16(layer, batch(tokens, shape, shape.experts), shape.top_k, 1e-5,
                     "nvfp4, " + std::to_string(each) + " scalars, inner " + std::to_string(shape.inner));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// There activations are rounded to BF16 instead of 8 bits with a scale to 32 inputs: the canonical numbers are the less
// exact ones.
TEST_F(CudaExperts, InBf16AreCloseToTheCanonicalNumbersInBlockFormats) {
  const Shape shape;
  std::vector<numeric::ExpertFormats> all;
  for (const ExpertFormat format : kFormats) {
    if (is_block_format(format)) all.push_back({format, format, format});
  }
  all.push_back({ExpertFormat::kNvfp4, ExpertFormat::kNvfp4, ExpertFormat::kIq4nl});
  all.push_back({ExpertFormat::kIq3s, ExpertFormat::kIq3s, ExpertFormat::kNvfp4});
  for (const numeric::ExpertFormats& formats : all) {
    for (const int64_t each : {6, 3}) {
      const Layer layer(random_, *card_, formats, shape, each);
      for (const int64_t tokens : {70, 300}) {
        // Where down takes four bits, a hundredth in its inputs chooses other codes.
        compare_bf16(layer, batch(tokens, shape, 12), shape.top_k, formats[2] == ExpertFormat::kNvfp4 ? 0.15 : 3e-2,
                     name_of(formats));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaExperts, TakeManyTokensInParts) {
  const Shape shape{40, 64, 64, 2};
  const ExpertFormat nvfp4 = ExpertFormat::kNvfp4;
  const Layer layer(random_, *card_, {nvfp4, nvfp4, ExpertFormat::kIq4nl}, shape);
  compare(layer, batch(2500, shape, 31), shape.top_k, "2500");
}

}  // namespace
}  // namespace tandem::ops::cuda
