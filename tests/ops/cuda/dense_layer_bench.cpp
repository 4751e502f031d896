// Speed of the products of a layer of 27B one behind the other, as a step has them, on the first card: what lies
// between kernels shows here alone. Letters are the output projection (o), gate and up (g), down (d), the projections
// of the next layer (x) and a norm (n).
#include <fmt/format.h>
#include <string_view>
#include <vector>

#include "ops/cuda/dense_measure.h"
#include "ops/cuda/elementwise.h"
#include "ops/weight_bytes.h"
#include "tests/ops/cuda/dense_card.h"

namespace tandem::ops::cuda {
namespace {

constexpr int kLayers = 3;  // that launches rotate over: more than the card's cache holds
constexpr int64_t kHidden = 5120;
constexpr int64_t kMixer = 6144;
constexpr int64_t kInner = 17408;

struct Formats {
  const char* name;
  WeightFormat outer, inner;  // of the projections around the mixer, of the feed-forward
};

class Layer {
 public:
  Layer(DenseCard& card, const Formats& formats, uint32_t seed) : card_(card), seed_(seed) {
    out = matrix(formats.outer, kHidden, kMixer);
    gate = matrix(formats.inner, kInner, kHidden);
    up = matrix(formats.inner, kInner, kHidden);
    down = matrix(formats.inner, kHidden, kInner);
    next[0] = matrix(formats.outer, 10240, kHidden);
    next[1] = matrix(formats.outer, kMixer, kHidden);
    norm = reinterpret_cast<const float*>(random(kHidden * 4, 0xbfffffff));
  }

  Weight out, gate, up, down, next[2];
  const float* norm;

 private:
  std::byte* random(int64_t bytes, uint32_t mask) {
    memory_.emplace_back(card_.device(), (bytes + 511) / 256 * 256);
    fill_random(card_.context(), memory_.back().data(), memory_.back().bytes(), ++seed_, mask);
    return memory_.back().data();
  }
  Weight matrix(WeightFormat format, int64_t rows, int64_t inputs) {
    Weight w;
    w.format = format;
    w.rows = rows;
    w.inputs = inputs;
    w.group = format == WeightFormat::kInt3 ? 128 : 0;
    w.scale_type = ScaleType::kBF16;
    w.scale = format == WeightFormat::kNvfp4 ? 0x1p-8F : 0x1p-12F;  // sums stay of the size of one
    w.data = this;                                                  // for its bytes to be counted
    const int64_t data = data_bytes(w);
    const int64_t scales = scale_bytes(w);
    // BF16, and FP8 codes, without their highest exponent bit; integers as they come.
    const bool int3 = format == WeightFormat::kInt3;
    w.data = random(data, format == WeightFormat::kBF16 ? 0xbcffbcff : int3 ? ~0U : 0xbfbfbfbf);
    w.lane_order = can_arrange(w);  // random bits are as good in any order
    if (scales > 0) w.scales = random(scales, int3 ? 0x3c7f3c7f : 0x3f3f3f3f);
    return w;
  }

  DenseCard& card_;
  uint32_t seed_;
  std::vector<device::Buffer> memory_;
};

struct Columns {
  device::Buffer state, mixed, normed, change, upper, inner, first, second;
  Columns(DenseCard& card, int64_t tokens)
      : state(card.device(), tokens * kHidden * 4),
        mixed(card.device(), tokens * kMixer * 4),
        normed(card.device(), tokens * kHidden * 4),
        change(card.device(), tokens * kHidden * 4),
        upper(card.device(), tokens * kHidden * 4),
        inner(card.device(), tokens * kInner * 4),
        first(card.device(), tokens * 10240 * 4),
        second(card.device(), tokens * kMixer * 4) {
    uint32_t seed = 7;
    for (device::Buffer* buffer : {&state, &mixed, &normed, &inner}) {
      fill_random(card.context(), buffer->data(), buffer->bytes(), seed++, 0xbfffffff);
    }
  }
};

void launch(const Context& context, char part, const Layer& layer, Columns& c, int64_t tokens) {
  switch (part) {
    case 'o':
      linear_sum(context, c.mixed.as<float>(), tokens, layer.out, c.change.as<float>());
      break;
    case 'g':
      swiglu(context, c.normed.as<float>(), tokens, layer.gate, layer.up, c.inner.as<float>());
      break;
    case 'd':
      linear_sum(context, c.inner.as<float>(), tokens, layer.down, c.change.as<float>());
      break;
    case 'x': {
      const Ops::Product next[] = {{layer.next[0], c.first.as<float>()}, {layer.next[1], c.second.as<float>()}};
      linear_group(context, c.normed.as<float>(), tokens, next, false);
      break;
    }
    default:
      add_rms_norm(context, c.state.as<float>(), c.change.as<float>(), tokens, kHidden, layer.norm, 1e-6F,
                   c.normed.as<float>());
  }
}

void sequences(DenseCard& card, const Formats& formats, std::vector<Layer>& layers) {
  for (const int64_t tokens : {1, 4, 8}) {
    Columns columns(card, tokens);
    std::string line = fmt::format("{:10} {}:", formats.name, tokens);
    for (const std::string_view what : {"o", "g", "d", "x", "og", "gd", "dx", "xo", "ogdx", "ongdnx"}) {
      const auto steps = static_cast<int>(what.size());
      const LaunchTime time = measure_launches(card.context(), 24 * steps, 5, [&](int i) {
        launch(card.context(), what[static_cast<size_t>(i % steps)], layers[static_cast<size_t>(i / steps % kLayers)],
               columns, tokens);
      });
      line += fmt::format(" {} {:.1f}", what, time.each_us * steps);
    }
    fmt::print("{}\n", line);
  }
}

void run() {
  DenseCard card(int64_t{64} << 20);
  const int64_t pool_bytes = int64_t{4} << 30;
  device::Buffer pool(card.device(), pool_bytes);
  fill_random(card.context(), pool.data(), pool_bytes, 5, 0xffffffff);
  device::Buffer sink(card.device(), 256);
  const LaunchTime reading = measure_launches(
      card.context(), 2, 3, [&](int) { read_all(card.context(), pool.data(), pool_bytes, sink.as<uint32_t>()); });
  fmt::print("read {:.0f} GB/s; us:\n", static_cast<double>(pool_bytes) / reading.each_us / 1e3);
  constexpr Formats kKinds[] = {
      {"fp8+nvfp4", WeightFormat::kFp8Tensor, WeightFormat::kNvfp4},
      {"bf16+nvfp4", WeightFormat::kBF16, WeightFormat::kNvfp4},
      {"int3", WeightFormat::kInt3, WeightFormat::kInt3},
      {"bf16", WeightFormat::kBF16, WeightFormat::kBF16},
  };
  for (const Formats& formats : kKinds) {
    std::vector<Layer> layers;
    for (uint32_t i = 0; i < kLayers; ++i) layers.emplace_back(card, formats, 100 * i);
    sequences(card, formats, layers);
  }
}

}  // namespace
}  // namespace tandem::ops::cuda

int main() {
  tandem::ops::cuda::run();
}
