// Kernels that begin while the one before them ends (programmatic dependent launch): placing blocks and fetching
// weights overlap with its tail. Every kernel of a step that is launched so waits before it touches what another wrote.
#pragma once

#include <utility>

#include "ops/cuda/context.h"

namespace tandem::ops::cuda {

// The next kernel of the stream may start, up to its wait.
__device__ inline void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Until everything that the kernels before wrote can be seen. Weights may be read earlier: nothing writes them.
__device__ inline void await_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// At the top of a kernel that has nothing to do before.
__device__ inline void follow() {
  let_next_start();
  await_previous();
}

inline cudaLaunchAttribute following() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// Launches a kernel that follows.
template <typename... Parameters, typename... Arguments>
void launch_following(const Context& context, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                      Arguments&&... arguments) {
  cudaLaunchAttribute attribute = following();
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = context.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  TANDEM_CUDA_CHECK(
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
}

}  // namespace tandem::ops::cuda
