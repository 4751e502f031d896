// How fast a layer's routed experts are in the shape of Flash-Next: microseconds a layer for few columns against a
// plain read of the same records, and tokens a second for many.
//
//   cuda_experts_bench [few] [mixture] [many] [bf16] [TOKENS] [FORMATS]   FORMATS as "nvfp4" or "iq3_s,iq3_s,iq4_nl"
//
// `mixture`: the whole feed-forward, at once and part by part, and in turns with mixes of streams as a layer has them.
//
// Records rotate over several tables, so that no second-level cache serves them.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>

#include "device/buffer.h"
#include "device/cards.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/hyper.h"
#include "ops/cuda/router.h"
#include "tests/ops/cuda/experts_data.h"

namespace tandem::ops::cuda {
namespace {

constexpr int64_t kExperts = 512, kInner = 640, kHidden = 2560, kTopK = 10;
constexpr int kChunks = 64;  // of a record, a block each

// Reads whole records as fast as it can be done.
__global__ void __launch_bounds__(256)
    read_records(const std::byte* records, int64_t bytes, const int32_t* experts, uint32_t* out) {
  const int64_t chunk = bytes / kChunks / 16;
  const auto* from =
      reinterpret_cast<const uint4*>(records + experts[blockIdx.x / kChunks] * bytes) + blockIdx.x % kChunks * chunk;
  uint32_t sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < chunk; i += 256) {
    const uint4 a = __ldcs(from + i);
    sum ^= a.x ^ a.y ^ a.z ^ a.w;
  }
  if (sum == 0x12345678) out[0] = sum;
}

struct Bench {
  std::unique_ptr<device::Device> card = device::open_card(0);
  const device::cuda::CudaDevice& cuda = dynamic_cast<device::cuda::CudaDevice&>(*card);
  std::mt19937 engine{1};
  bool bf16 = false;  // many columns in BF16 products, else in the canonical arithmetic

  // Median microseconds of one of `calls` calls, which are recorded together.
  double time(int calls, const std::function<void(int)>& call) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t recorded = nullptr;
    TANDEM_CUDA_CHECK(cudaStreamBeginCapture(cuda.stream(), cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call(i);
    TANDEM_CUDA_CHECK(cudaStreamEndCapture(cuda.stream(), &graph));
    TANDEM_CUDA_CHECK(cudaGraphInstantiate(&recorded, graph, 0));
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    TANDEM_CUDA_CHECK(cudaEventCreate(&begin));
    TANDEM_CUDA_CHECK(cudaEventCreate(&end));
    std::vector<float> rounds;
    for (int round = 0; round < 7; ++round) {
      TANDEM_CUDA_CHECK(cudaEventRecord(begin, cuda.stream()));
      TANDEM_CUDA_CHECK(cudaGraphLaunch(recorded, cuda.stream()));
      TANDEM_CUDA_CHECK(cudaEventRecord(end, cuda.stream()));
      card->finish();
      float milliseconds = 0;
      TANDEM_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
      if (round > 0) rounds.push_back(milliseconds);
    }
    std::sort(rounds.begin(), rounds.end());
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    (void)cudaGraphExecDestroy(recorded);
    (void)cudaGraphDestroy(graph);
    return 1e3 * rounds[rounds.size() / 2] / calls;
  }

  template <typename T>
  device::Buffer put(const std::vector<T>& values) {
    device::Buffer buffer(*card, static_cast<int64_t>(values.size() * sizeof(T)));
    card->upload(buffer.data(), values.data(), buffer.bytes());
    card->finish();
    return buffer;
  }
};

// Tables of one kind of records. The bytes are those of a few random experts over and over.
struct Tables {
  std::vector<device::Buffer> records;
  device::Buffer scalars;
  ExpertTable table;

  Tables(Bench& bench, const numeric::ExpertFormats& formats, int count, int64_t scalars_each, bool shared) {
    table.experts = kExperts;
    table.inner = kInner;
    table.hidden = kHidden;
    table.scalars_each = scalars_each;
    table.place(formats);
    constexpr int64_t kMade = 8;
    const device::Buffer some =
        bench.put(RandomRecords(bench.engine, false).make(table.record, kMade, kInner, kHidden));
    for (int t = 0; t < count; ++t) {
      records.emplace_back(*bench.card, kExperts * table.record.bytes);
      for (int64_t e = 0; e < kExperts; e += kMade) {
        bench.card->copy(records.back().data() + e * table.record.bytes, some.data(), kMade * table.record.bytes);
      }
    }
    auto values = random_scalars(bench.engine, kExperts, scalars_each);
    for (size_t e = 0; shared && e < values.size(); e += 6) values[e + 4] = values[e + 3];
    scalars = bench.put(values);
    table.scalars = scalars.as<float>();
    bench.card->finish();
  }
  ExpertTable at(int i) const {
    ExpertTable one = table;
    one.records = records[static_cast<size_t>(i) % records.size()].data();
    return one;
  }
};

// A batch whose tokens choose at random; several choices in turns.
struct Batch {
  int64_t tokens;
  device::Buffer x, ids, weights, lower, upper, faults;
  std::vector<std::vector<int32_t>> chosen;  // the distinct experts of each choice

  Batch(Bench& bench, int64_t count, int choices) : tokens(count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(tokens * kHidden));
    for (float& v : values) v = normal(bench.engine);
    x = bench.put(values);
    std::vector<int32_t> all_ids;
    std::vector<int32_t> all(static_cast<size_t>(kExperts));
    std::iota(all.begin(), all.end(), 0);
    for (int c = 0; c < choices; ++c) {
      std::vector<int32_t> distinct;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t k = 0; k < kTopK; ++k) {
          std::swap(all[static_cast<size_t>(k)],
                    all[static_cast<size_t>(std::uniform_int_distribution<int64_t>(k, kExperts - 1)(bench.engine))]);
        }
        all_ids.insert(all_ids.end(), all.begin(), all.begin() + kTopK);
        distinct.insert(distinct.end(), all.begin(), all.begin() + kTopK);
      }
      std::sort(distinct.begin(), distinct.end());
      distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
      chosen.push_back(distinct);
    }
    ids = bench.put(all_ids);
    weights = bench.put(std::vector<float>(static_cast<size_t>(tokens * kTopK), 0.1F));
    lower = bench.put(values);
    upper = bench.put(values);
    faults = bench.put(std::vector<int32_t>(static_cast<size_t>(tokens), -1));
  }
  Ops::Experts args(const ExpertTable& table, int choice) {
    return {.x = x.as<float>(),
            .tokens = tokens,
            .top_k = kTopK,
            .ids = ids.as<int32_t>() + static_cast<int64_t>(choice) * tokens * kTopK,
            .weights = weights.as<float>(),
            .table = table,
            .quantise_activations = true,
            .lower = lower.as<float>(),
            .upper = upper.as<float>(),
            .faults = faults.as<int32_t>(),
            .fault = 1};
  }
};

void run(Bench& bench, const Tables& tables, Batch& batch, int calls, const char* name) {
  Scratch planning = Scratch::planning();
  const Context plan{.stream = bench.cuda.stream(),
                     .scratch = planning,
                     .multiprocessors = bench.cuda.card().multiprocessors,
                     .bf16_experts = bench.bf16};
  experts(plan, batch.args(tables.at(0), 0));
  device::Buffer memory(*bench.card, planning.most());
  Scratch scratch(memory.data(), planning.most());
  const Context context{.stream = bench.cuda.stream(),
                        .scratch = scratch,
                        .multiprocessors = bench.cuda.card().multiprocessors,
                        .bf16_experts = bench.bf16};
  const auto choices = static_cast<int>(batch.chosen.size());
  const double layer = bench.time(calls, [&](int i) { experts(context, batch.args(tables.at(i), i % choices)); });
  double distinct = 0;
  for (int i = 0; i < calls; ++i)
    distinct += static_cast<double>(batch.chosen[static_cast<size_t>(i % choices)].size());
  distinct /= calls;
  std::vector<device::Buffer> lists;
  for (const auto& chosen : batch.chosen) lists.push_back(bench.put(chosen));
  const device::Buffer out(*bench.card, 256);
  const double read = bench.time(calls, [&](int i) {
    const auto c = static_cast<size_t>(i % choices);
    read_records<<<static_cast<unsigned>(batch.chosen[c].size() * kChunks), 256, 0, bench.cuda.stream()>>>(
        tables.at(i).records, tables.table.record.bytes, lists[c].as<int32_t>(),
        const_cast<uint32_t*>(out.as<uint32_t>()));
    TANDEM_CUDA_LAUNCHED("read_records");
  });
  const double megabytes = distinct * static_cast<double>(tables.table.record.bytes) / 1e6;
  std::printf(
      "%-8s %5lld tokens: %8.2f us a layer, %6.1f experts, %7.1f MB, %5.2f TB/s; plain read %7.2f us (%4.2f TB/s), "
      "ratio %4.2f; %8.0f tokens/s; scratch %lld MB\n",
      name, static_cast<long long>(batch.tokens), layer, distinct, megabytes, megabytes / layer, read, megabytes / read,
      read / layer, 1e6 * static_cast<double>(batch.tokens) / layer, static_cast<long long>(planning.most() >> 20));
}

// What a layer has besides its experts, several times over.
struct Dense {
  static constexpr int kCopies = 16;
  std::vector<device::Buffer> buffers;

  explicit Dense(Bench& bench) {
    std::vector<uint16_t> values(static_cast<size_t>((kExperts + 1 + 3 * kInner) * kHidden));
    for (int c = 0; c < kCopies; ++c) {
      for (uint16_t& v : values) {
        v = static_cast<uint16_t>(bench.engine());
        v = static_cast<uint16_t>((v & 0x80ff) | 0x3c00);  // some hundredths
      }
      buffers.push_back(bench.put(values));
    }
  }
  Weight weight(int copy, int64_t first_row, int64_t rows, int64_t inputs) const {
    Weight w;
    w.data = buffers[static_cast<size_t>(copy % kCopies)].data() + first_row * kHidden * 2;
    w.format = WeightFormat::kBF16;
    w.rows = rows;
    w.inputs = inputs;
    return w;
  }
};

// Mixes of streams, whose columns a feed-forward takes, and which take its results.
struct Mixes {
  static constexpr int64_t kStreams = 4, kRank = 320;
  std::vector<device::Buffer> matrices;
  device::Buffer norm, state, factors;

  explicit Mixes(Bench& bench) {
    std::vector<uint16_t> values(static_cast<size_t>((2 * kRank + kStreams) * kStreams * kHidden));
    for (int c = 0; c < Dense::kCopies; ++c) {
      for (uint16_t& v : values) v = static_cast<uint16_t>((bench.engine() & 0x80ff) | 0x3c00);
      matrices.push_back(bench.put(values));
    }
    const std::vector<float> ones(static_cast<size_t>(8 * kStreams * kHidden), 1);
    norm = bench.put(ones);
    state = bench.put(ones);
    factors = bench.put(ones);
  }
  void mix(const Context& context, int copy, const float* y, int64_t tokens, float* x) const {
    const std::byte* at = matrices[static_cast<size_t>(copy % Dense::kCopies)].data();
    const auto weight = [&](int64_t rows, int64_t inputs) {
      Weight w;
      w.data = at;
      w.format = WeightFormat::kBF16;
      w.rows = rows;
      w.inputs = inputs;
      at += rows * inputs * 2;
      return w;
    };
    HyperWeights w;
    w.norm = norm.as<float>();
    w.down = weight(kRank, kStreams * kHidden);
    w.up = weight(kStreams * kHidden, kRank);
    w.inject = weight(kStreams, kStreams * kHidden);
    const auto floats = [](const device::Buffer& buffer) { return const_cast<float*>(buffer.as<float>()); };
    float* of_turn[] = {floats(factors), floats(factors) + 8 * kStreams};
    if (!hyper_inject_mix(context, floats(state), y, of_turn[copy % 2], w, tokens, kStreams, kHidden, 1e-6F, x,
                          of_turn[1 - copy % 2])) {
      base::bad_input("mix", "not served");
    }
  }
};

void run_mixture(Bench& bench, const Tables& tables, const Dense& dense, const Mixes& mixes, int64_t tokens) {
  Batch batch(bench, tokens, 1);
  const std::vector<float> zeros(static_cast<size_t>(tokens * kHidden));
  const auto memory = [&] { return bench.put(zeros); };
  const device::Buffer out = memory(), gates = memory(), inner = memory(), other = memory(), shared_lower = memory(),
                       shared_upper = memory();
  const auto args = [&](int i) {
    const auto floats = [](const device::Buffer& buffer) { return const_cast<float*>(buffer.as<float>()); };
    return Ops::ExpertMixture{.experts = batch.args(tables.at(i), 0),
                              .router = dense.weight(i, 0, kExperts, kHidden),
                              .shared_gate = dense.weight(i, kExperts, 1, kHidden),
                              .gate = dense.weight(i, kExperts + 1, kInner, kHidden),
                              .up = dense.weight(i, kExperts + 1 + kInner, kInner, kHidden),
                              .down = dense.weight(i, kExperts + 1 + 2 * kInner, kHidden, kInner),
                              .ids = const_cast<int32_t*>(batch.ids.as<int32_t>()),
                              .weights = const_cast<float*>(batch.weights.as<float>()),
                              .out = floats(out),
                              .gates = floats(gates),
                              .inner = floats(inner),
                              .other = floats(other),
                              .shared_lower = floats(shared_lower),
                              .shared_upper = floats(shared_upper)};
  };
  device::Buffer room(*bench.card, 64 << 20);
  Scratch scratch(room.data(), room.bytes());
  const Context context{
      .stream = bench.cuda.stream(), .scratch = scratch, .multiprocessors = bench.cuda.card().multiprocessors};
  const double at_once = bench.time(64, [&](int i) {
    if (!expert_mixture(context, args(i))) base::bad_input("mixture", "not served");
  });
  const auto mix = [&](int i) {
    mixes.mix(context, i, out.as<float>(), tokens, const_cast<float*>(batch.x.as<float>()));
  };
  const double in_turns = bench.time(64, [&](int i) {
    mix(i);
    if (!expert_mixture(context, args(i))) base::bad_input("mixture", "not served");
  });
  const double mixes_alone = bench.time(64, mix);
  const double parts = bench.time(64, [&](int i) {
    const Ops::ExpertMixture m = args(i);
    const Ops::Experts& e = m.experts;
    router_and_gate(context, e.x, tokens, m.router, m.shared_gate, kTopK, m.ids, m.weights, m.gates);
    experts(context, e);
    if (!swiglu(context, e.x, tokens, m.gate, m.up, m.inner)) base::bad_input("swiglu", "not served");
    linear_halves(context, m.inner, tokens, m.down, m.shared_lower, m.shared_upper);
    combine_experts(context, e.lower, e.upper, m.shared_lower, m.shared_upper, m.gates, tokens, kHidden, m.out);
  });
  const double routed = bench.time(64, [&](int i) { experts(context, args(i).experts); });
  std::printf(
      "mixture %lld tokens: %8.2f us at once, %8.2f us by its parts, of which experts %8.2f us; %8.2f us in turns with "
      "mixes of streams, which take %8.2f us by themselves\n",
      static_cast<long long>(tokens), at_once, parts, routed, in_turns, mixes_alone);
}

numeric::ExpertFormats formats_of(const std::string& text) {
  numeric::ExpertFormats formats{};
  size_t from = 0;
  for (auto& format : formats) {
    const size_t to = text.find(',', from);
    const auto found = numeric::expert_format_from_name(text.substr(from, to == std::string::npos ? to : to - from));
    if (!found) base::bad_input("FORMATS", "unknown: {}", text);
    format = *found;
    if (to != std::string::npos) from = to + 1;
  }
  return formats;
}

void main_of(const std::vector<std::string>& words) {
  Bench bench;
  std::string formats = "nvfp4";
  bool few = false;
  bool many = false;
  bool mixture = false;
  bool shared = false;  // gate and up have one input scale
  int64_t scalars_each = 6;
  std::vector<int64_t> sizes;
  for (const std::string& word : words) {
    if (word == "few") {
      few = true;
    } else if (word == "mixture") {
      mixture = true;
    } else if (word == "many") {
      many = true;
    } else if (word == "bf16") {
      bench.bf16 = true;
    } else if (word == "shared") {
      shared = true;
    } else if (word == "dynamic") {
      scalars_each = 3;
    } else if (word.find_first_not_of("0123456789") == std::string::npos) {
      sizes.push_back(std::stoll(word));
    } else {
      formats = word;
    }
  }
  const Tables tables(bench, formats_of(formats), 8, scalars_each, shared && scalars_each == 6);
  if (few) {
    for (const int64_t tokens : {1, 2, 4, 8}) {
      Batch batch(bench, tokens, 16);
      run(bench, tables, batch, 64, formats.c_str());
    }
  }
  if (mixture) {
    const Dense dense(bench);
    const Mixes mixes(bench);
    for (const int64_t tokens : {1, 2, 4, 8}) run_mixture(bench, tables, dense, mixes, tokens);
  }
  if (many) sizes.insert(sizes.end(), {512, 2048, 8192});
  for (const int64_t tokens : sizes) {
    Batch batch(bench, tokens, 1);
    run(bench, tables, batch, tokens <= 128 ? 32 : 4, formats.c_str());
  }
}

}  // namespace
}  // namespace tandem::ops::cuda

int main(int count, char** words) {
  try {
    tandem::ops::cuda::main_of({words + 1, words + count});
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
