#include "ops/cuda/op_figures.h"

#include <numeric>

#include "base/units.h"
#include "device/buffer.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/delta_net.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_measure.h"
#include "ops/cuda/experts.h"
#include "ops/weight_bytes.h"

namespace tandem::ops::cuda {

namespace {

constexpr int64_t kOpScratchBytes = int64_t{512} << 20;
constexpr int64_t kBeyondCache = int64_t{400} << 20;  // of data that launches rotate over
constexpr uint32_t kSmallNumbers = 0xbfbfbfbf;        // numbers of 8, 16 and 32 bits without their highest exponent bit
constexpr int kLaunches = 24;

// A card with scratch memory, ready to launch.
class Bench {
 public:
  explicit Bench(device::Device& device)
      : card_(dynamic_cast<const device::cuda::CudaDevice&>(device)),
        memory_(device, kOpScratchBytes),
        scratch_(memory_.data(), kOpScratchBytes),
        context_{.stream = card_.stream(),
                 .scratch = scratch_,
                 .multiprocessors = card_.card().multiprocessors,
                 .capability = 10 * card_.card().capability_major + card_.card().capability_minor} {}
  const Context& context() const { return context_; }

  device::Buffer random(device::Device& device, int64_t bytes, uint32_t seed, uint32_t mask = kSmallNumbers) {
    device::Buffer buffer(device, static_cast<int64_t>(base::round_up(static_cast<uint64_t>(bytes), 256)));
    fill_random(context_, buffer.data(), buffer.bytes(), seed, mask);
    return buffer;
  }

 private:
  const device::cuda::CudaDevice& card_;
  device::Buffer memory_;
  Scratch scratch_;
  Context context_;
};

struct NamedFormat {
  const char* name;
  WeightFormat format;
  ScaleType scales;
  int64_t group;
};
constexpr NamedFormat kFormats[] = {
    {"bf16", WeightFormat::kBF16, ScaleType::kF32, 0},           {"fp8_row", WeightFormat::kFp8Row, ScaleType::kF32, 0},
    {"fp8_block", WeightFormat::kFp8Block, ScaleType::kBF16, 0}, {"nvfp4", WeightFormat::kNvfp4, ScaleType::kF32, 0},
    {"int8", WeightFormat::kInt8, ScaleType::kBF16, 128},        {"int4", WeightFormat::kInt4, ScaleType::kBF16, 128},
    {"int3", WeightFormat::kInt3, ScaleType::kBF16, 128},
};

int64_t aligned(int64_t bytes) {
  return static_cast<int64_t>(base::round_up(static_cast<uint64_t>(bytes), 256));
}

}  // namespace

std::vector<OpFigure> measure_dense(device::Device& device, int rounds) {
  Bench bench(device);
  constexpr int64_t kRows = 17408;
  constexpr int64_t kInputs = 5120;
  device::Buffer x = bench.random(device, kMostFewColumns * kInputs * 4, 1);
  device::Buffer y(device, kMostFewColumns * kRows * 4);
  std::vector<OpFigure> figures;
  for (const NamedFormat& format : kFormats) {
    Weight w{
        .format = format.format, .rows = kRows, .inputs = kInputs, .scale_type = format.scales, .group = format.group};
    w.data = x.data();  // so that its bytes are counted
    w.lane_order = can_arrange(w);
    const int64_t data = aligned(data_bytes(w));
    const int64_t scales = aligned(scale_bytes(w));
    const int64_t copies = kBeyondCache / (data + scales) + 1;
    device::Buffer memory = bench.random(device, copies * (data + scales), 2);
    for (const int64_t columns : {1, 4, 8}) {
      const auto launch = [&](int i) {
        Weight one = w;
        one.data = memory.data() + i % copies * (data + scales);
        one.scales = memory.data() + i % copies * (data + scales) + data;
        linear(bench.context(), x.as<float>(), columns, one, false, y.as<float>());
      };
      const double seconds = measure_launches(bench.context(), kLaunches, rounds, launch).each_us * 1e-6;
      figures.push_back({fmt::format("dense.{}.c{}", format.name, columns), data_bytes(w) + scale_bytes(w),
                         2.0 * static_cast<double>(columns * kRows * kInputs), seconds});
    }
  }
  return figures;
}

std::vector<OpFigure> measure_experts(device::Device& device, int rounds) {
  Bench bench(device);
  constexpr int64_t kExperts = 512;
  constexpr int64_t kInner = 640;
  constexpr int64_t kHidden = 2560;
  constexpr int64_t kTopK = 10;
  constexpr uint32_t kSmallPositive = 0x3fbfbfbf;
  device::Buffer x = bench.random(device, kMostFewColumns * kHidden * 4, 8);
  device::Buffer scalars = bench.random(device, kExperts * 6 * 4, 9, kSmallPositive);
  device::Buffer weights = bench.random(device, kMostFewColumns * kTopK * 4, 10, kSmallPositive);
  device::Buffer out(device, 2 * kMostFewColumns * kHidden * 4);
  device::Buffer faults(device, kMostFewColumns * 4, true);
  // Each launch takes the next experts of one order of all.
  std::vector<int32_t> order(kExperts + kMostFewColumns * kTopK);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i * 197 % kExperts);
  device::Buffer ids(device, static_cast<int64_t>(order.size() * sizeof(int32_t)));
  device.upload(ids.data(), order.data(), ids.bytes());
  std::vector<OpFigure> figures;
  for (const ExpertFormat format :
       {ExpertFormat::kBF16, ExpertFormat::kNvfp4, ExpertFormat::kFp8Block, ExpertFormat::kIq2s, ExpertFormat::kIq3xxs,
        ExpertFormat::kIq3s, ExpertFormat::kIq4xs, ExpertFormat::kIq4nl, ExpertFormat::kQ2_0}) {
    ExpertTable table;
    table.experts = kExperts;
    table.inner = kInner;
    table.hidden = kHidden;
    table.scalars = scalars.as<float>();
    const bool whole = kInner % numeric::expert_multiple(format) == 0;
    table.place({format, format, whole ? format : ExpertFormat::kIq4nl});
    device::Buffer records = bench.random(device, kExperts * table.record.bytes, 11);
    table.records = records.data();
    for (const int64_t columns : {1, 4, 8}) {
      const int64_t chosen = columns * kTopK;
      const auto launch = [&](int i) {
        Ops::Experts args;
        args.x = x.as<float>();
        args.tokens = columns;
        args.top_k = kTopK;
        args.ids = ids.as<int32_t>() + i * chosen % kExperts;
        args.weights = weights.as<float>();
        args.table = table;
        args.quantise_activations = format != ExpertFormat::kBF16;
        args.lower = out.as<float>();
        args.upper = out.as<float>() + kMostFewColumns * kHidden;
        args.faults = faults.as<int32_t>();
        experts(bench.context(), args);
      };
      const double seconds = measure_launches(bench.context(), kLaunches, rounds, launch).each_us * 1e-6;
      figures.push_back({fmt::format("experts.{}.c{}", numeric::expert_format_name(format), columns),
                         chosen * table.record.bytes, 6.0 * static_cast<double>(chosen * kInner * kHidden), seconds});
    }
  }
  return figures;
}

OpFigure measure_attention(device::Device& device, int rounds) {
  Bench bench(device);
  constexpr int64_t kTokens = 65536;
  constexpr int64_t kPages = kTokens / 64;
  constexpr int64_t kHeads = 24;
  constexpr int64_t kSets = 4;  // of pages
  const int64_t codes = 2 * 4 * 64 * 256;
  const int64_t page_bytes = codes + 2 * 4 * 64 * 4 * 2;
  device::Buffer pages = bench.random(device, kSets * kPages * page_bytes, 3);
  device::Buffer q = bench.random(device, kHeads * 256 * 4, 4);
  device::Buffer out(device, kHeads * 256 * 4);
  std::vector<int32_t> numbers(kPages);
  std::iota(numbers.begin(), numbers.end(), 0);
  device::Buffer table(device, kPages * 4);
  device.upload(table.data(), numbers.data(), table.bytes());
  const Run run{.position = kTokens - 1, .tokens = 1, .block_table = table.as<int32_t>()};
  device::Buffer runs(device, sizeof(Run));
  device.upload(runs.data(), &run, sizeof(Run));
  const Columns columns{.runs = {&run, 1}, .table = runs.as<Run>(), .each = 1, .reach = kTokens};
  const auto launch = [&](int i) {
    const KvLayer kv{.pages = pages.data() + i % kSets * kPages * page_bytes,
                     .page_bytes = page_bytes,
                     .kv_heads = 4,
                     .head_dim = 256,
                     .type = KvType::kInt8};
    attention(bench.context(), columns,
              {.q = q.as<float>(), .heads = kHeads, .scale = 0.0625F, .kv = kv, .out = out.as<float>()});
  };
  const double seconds = measure_launches(bench.context(), kLaunches, rounds, launch).each_us * 1e-6;
  return {"attention.int8.ctx64k", kPages * page_bytes, 4.0 * kTokens * kHeads * 256, seconds};
}

double measure_delta_speedup(device::Device& device, int rounds) {
  Bench bench(device);
  constexpr int64_t kTokens = 4096;
  constexpr int64_t kSteps = 63;  // no whole chunk: token by token
  constexpr int64_t kKeyHeads = 16;
  constexpr int64_t kHeads = 48;
  constexpr int64_t kDim = 128;
  constexpr int64_t kStride = 2 * kKeyHeads * kDim + kHeads * kDim;
  device::Buffer qkv = bench.random(device, kTokens * kStride * 4, 5);
  device::Buffer gates = bench.random(device, 2 * kTokens * kHeads * 4, 6);
  device::Buffer constants = bench.random(device, 2 * kHeads * 4, 7);
  device::Buffer out(device, kTokens * kHeads * kDim * 4);
  device::Buffer slot(device, kHeads * kDim * kDim * 4, true);
  device::Buffer runs(device, sizeof(Run));
  const auto seconds = [&](int64_t tokens) {
    const Run run{.position = 0, .tokens = tokens, .slot = slot.data()};
    device.upload(runs.data(), &run, sizeof(Run));
    const Columns columns{.runs = {&run, 1}, .table = runs.as<Run>(), .each = tokens, .reach = tokens};
    const auto launch = [&](int) {
      delta_net(bench.context(), columns,
                {.qkv = qkv.as<float>(),
                 .a = gates.as<float>(),
                 .b = gates.as<float>() + kTokens * kHeads,
                 .a_log = constants.as<float>(),
                 .dt_bias = constants.as<float>() + kHeads,
                 .key_heads = kKeyHeads,
                 .value_heads = kHeads,
                 .key_dim = kDim,
                 .value_dim = kDim,
                 .out = out.as<float>()});
    };
    return measure_launches(bench.context(), 4, rounds, launch).each_us * 1e-6;
  };
  const double by_steps = seconds(kSteps) / kSteps * kTokens;
  return by_steps / seconds(kTokens);
}

}  // namespace tandem::ops::cuda
