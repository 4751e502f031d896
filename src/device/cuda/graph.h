// A captured CUDA graph, ready to be launched on the stream it was captured from.
#pragma once

#include <cuda_runtime_api.h>

#include "device/device.h"

namespace tandem::device::cuda {

class Graph final : public Recording {
 public:
  // Takes the graph over.
  Graph(cudaStream_t stream, cudaGraph_t graph);
  ~Graph() override;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void run() override;

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tandem::device::cuda
