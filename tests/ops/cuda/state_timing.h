// Timing of operations on the card: graphs of many calls over arrays that rotate through more than the second-level
// cache.
#pragma once

#include <algorithm>
#include <functional>

#include "tests/ops/cuda/state_card.h"

namespace tandem::ops::cuda {

inline constexpr int64_t kCopies = 40;  // of what a call reads: a layer's weights or state each

// Microseconds of one call, of kCopies in a graph.
inline double microseconds(StateCard& card, const std::function<void(int64_t copy)>& call, int64_t copies = kCopies) {
  const cudaStream_t stream = card.context.stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t recorded = nullptr;
  for (int64_t copy = 0; copy < copies; ++copy) call(copy);
  TANDEM_CUDA_CHECK(cudaStreamSynchronize(stream));
  TANDEM_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int64_t copy = 0; copy < copies; ++copy) call(copy);
  TANDEM_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  TANDEM_CUDA_CHECK(cudaGraphInstantiate(&recorded, graph, 0));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  TANDEM_CUDA_CHECK(cudaEventCreate(&begin));
  TANDEM_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<double> rounds;
  for (int round = 0; round < 10; ++round) {
    TANDEM_CUDA_CHECK(cudaEventRecord(begin, stream));
    TANDEM_CUDA_CHECK(cudaGraphLaunch(recorded, stream));
    TANDEM_CUDA_CHECK(cudaEventRecord(end, stream));
    TANDEM_CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    TANDEM_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (round > 0) rounds.push_back(1000.0 * milliseconds / static_cast<double>(copies));
  }
  TANDEM_CUDA_CHECK(cudaGraphExecDestroy(recorded));
  TANDEM_CUDA_CHECK(cudaGraphDestroy(graph));
  TANDEM_CUDA_CHECK(cudaEventDestroy(begin));
  TANDEM_CUDA_CHECK(cudaEventDestroy(end));
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

struct Bench {
  RandomData random;
  StateCard card;
  // Random floats that every array of inputs takes its part of.
  std::vector<float> pool = random.normal(1 << 20);
  std::vector<device::Buffer> buffers;

  template <typename T = float>
  T* filled(int64_t count, bool zero = false) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    buffers.emplace_back(*card.device, bytes);
    if (zero) {
      card.device->zero(buffers.back().data(), bytes);
      return buffers.back().as<T>();
    }
    std::vector<uint16_t> halves;
    if constexpr (sizeof(T) == 2) {
      for (const float v : pool) halves.push_back(numeric::bf16_from_float(0.02F * v));
    }
    const void* from = sizeof(T) == 2 ? static_cast<const void*>(halves.data()) : pool.data();
    const int64_t most = static_cast<int64_t>(pool.size() * (sizeof(T) == 2 ? 2 : 4));
    for (int64_t at = 0; at < bytes; at += most) {
      card.device->upload(buffers.back().data() + at, from, std::min(most, bytes - at));
      card.device->finish();
    }
    return buffers.back().as<T>();
  }
  // As models have it on the card, with scales of zero.
  Weight nvfp4(int64_t rows, int64_t inputs) {
    Weight w;
    w.data = filled<uint8_t>(rows * inputs / 2);
    w.format = WeightFormat::kNvfp4;
    w.rows = rows;
    w.inputs = inputs;
    w.scales = filled<uint8_t>(rows * inputs / 16, true);
    w.lane_order = true;
    return w;
  }
  Weight weight(int64_t rows, int64_t inputs) {
    return {.data = filled<uint16_t>(rows * inputs), .format = WeightFormat::kBF16, .rows = rows, .inputs = inputs};
  }
};

struct BenchColumns {
  std::vector<Run> runs;
  Run* table = nullptr;
  int64_t each = 1;
  Columns columns() const { return {runs, table, each, 1 << 20, true}; }
};

inline BenchColumns make_columns(Bench& bench, int64_t runs, int64_t each, int64_t position, int64_t slot_floats) {
  BenchColumns columns;
  columns.each = each;
  for (int64_t r = 0; r < runs; ++r) {
    columns.runs.push_back({position, each, reinterpret_cast<std::byte*>(bench.filled(slot_floats, true)), nullptr});
  }
  columns.table = bench.filled<Run>(runs, true);
  bench.card.device->upload(columns.table, columns.runs.data(), runs * static_cast<int64_t>(sizeof(Run)));
  bench.card.device->finish();
  return columns;
}

}  // namespace tandem::ops::cuda
