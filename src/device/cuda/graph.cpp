#include "device/cuda/graph.h"

#include "device/cuda/check.h"

namespace tandem::device::cuda {

Graph::Graph(cudaStream_t stream, cudaGraph_t graph) : stream_(stream) {
  const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
  (void)cudaGraphDestroy(graph);
  check_call(status, "cudaGraphInstantiate", __FILE__, __LINE__);
}

Graph::~Graph() {
  (void)cudaGraphExecDestroy(executable_);
}

void Graph::run() {
  TANDEM_CUDA_CHECK(cudaGraphLaunch(executable_, stream_));
}

}  // namespace tandem::device::cuda
