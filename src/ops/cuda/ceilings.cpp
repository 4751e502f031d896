#include "ops/cuda/ceilings.h"

#include "device/buffer.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/context.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_measure.h"

namespace tandem::ops::cuda {

namespace {

constexpr int64_t kReadBytes = int64_t{4} << 30;
constexpr int64_t kScratchBytes = int64_t{768} << 20;
constexpr int64_t kSide = 8192;
constexpr uint32_t kBelowTwo = 0xbfbfbfbf;  // BF16 and FP32 numbers without their highest exponent bit

}  // namespace

CardCeilings measure_ceilings(device::Device& device, int rounds) {
  const auto& card = dynamic_cast<const device::cuda::CudaDevice&>(device);
  device::Buffer scratch_memory(device, kScratchBytes);
  Scratch scratch(scratch_memory.data(), scratch_memory.bytes());
  const Context context{.stream = card.stream(),
                        .scratch = scratch,
                        .multiprocessors = card.card().multiprocessors,
                        .capability = 10 * card.card().capability_major + card.card().capability_minor};
  device::Buffer data(device, kReadBytes);
  device::Buffer sink(device, 256, true);
  fill_random(context, data.data(), kReadBytes, 1, kBelowTwo);
  const auto seconds = [&](int count, const std::function<void(int)>& launch) {
    return measure_launches(context, count, rounds, launch).each_us * 1e-6;
  };
  CardCeilings ceilings;
  ceilings.read_bytes_s =
      kReadBytes / seconds(2, [&](int) { read_all(context, data.data(), kReadBytes, sink.as<uint32_t>()); });
  ceilings.copy_bytes_s =
      kReadBytes / seconds(2, [&](int) { device.copy(data.data() + kReadBytes / 2, data.data(), kReadBytes / 2); });
  fill_random(context, data.data(), kReadBytes, 2, kBelowTwo);
  const Weight weight{.data = data.data(), .format = WeightFormat::kBF16, .rows = kSide, .inputs = kSide};
  const auto* x = reinterpret_cast<const float*>(data.data() + kReadBytes / 4);
  auto* y = reinterpret_cast<float*>(data.data() + kReadBytes / 2);
  const double product = seconds(4, [&](int) { linear(context, x, kSide, weight, false, y); });
  ceilings.matmul_flops_s = 2.0 * kSide * kSide * kSide / product;
  return ceilings;
}

}  // namespace tandem::ops::cuda
