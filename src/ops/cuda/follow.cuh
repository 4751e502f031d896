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

// Lets blocks of a kernel have this much shared memory beside what it declares; all may have 48 KB together.
template <typename... Parameters>
void allow_shared(void (*kernel)(Parameters...), int64_t bytes) {
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

// A multiprocessor's memory is divided between its first-level cache and shared memory, and can be divided anew only
// while no block is on it: blocks of a kernel that asks for another division than the ones before wait for these. The
// driver's own choice is as much as the kernel's most blocks could use, alone. `percent` of what there can be.
template <typename... Parameters>
void prefer_shared(void (*kernel)(Parameters...), int percent) {
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent));
}

#ifdef __CUDACC__
// Rehearsals. A kernel does its work twice: in round 1 for good, when the kernels before have ended; until then, in
// round 0, for its instructions alone, which have mostly left the caches since the last layer and come one after the
// other. Round 0 reads what nothing writes (or by way of the second-level cache alone, so that round 1 reads it again),
// and writes nothing but what round 1 writes again.

// Whether the round is for good; the compiler does not know, and has the same instructions for both.
__device__ __forceinline__ bool begin_round(int round) {
  asm volatile("" : "+r"(round));
  if (round != 0) await_previous();
  return round != 0;
}
// work(for_good) in both rounds; without rehearsal, where blocks mostly start too late for it, in one.
template <bool kRehearses = true, typename Work>
__device__ __forceinline__ void rehearse(const Work& work) {
  if constexpr (kRehearses) {
#pragma unroll 1
    for (int round = 0; round < 2; ++round) work(begin_round(round));
  } else {
    await_previous();
    work(true);
  }
}
#endif

inline cudaLaunchAttribute following() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// Launches a kernel that follows, its blocks in clusters of `cluster` (a block each by itself where that is {1, 1, 1}).
// Clusters go where there is room rather than evenly over the card: with the driver's own preference the clusters of a
// kernel behind another's wait for microseconds, 12 us of a layer of 27B's 98.
template <typename... Parameters, typename... Arguments>
void launch_following_clusters(const Context& context, dim3 cluster, void (*kernel)(Parameters...), dim3 grid,
                               dim3 block, size_t shared, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[3] = {following(), {}, {}};
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster.x, cluster.y, cluster.z};
  attributes[2].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
  attributes[2].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = context.stream;
  config.attrs = attributes;
  config.numAttrs = cluster.x * cluster.y * cluster.z > 1 ? 3 : 1;
  TANDEM_CUDA_CHECK(
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
}

// Launches a kernel that follows.
template <typename... Parameters, typename... Arguments>
void launch_following(const Context& context, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                      Arguments&&... arguments) {
  launch_following_clusters(context, dim3(1), kernel, grid, block, shared, std::forward<Arguments>(arguments)...);
}

}  // namespace tandem::ops::cuda
