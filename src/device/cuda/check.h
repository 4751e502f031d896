// Checks of CUDA's calls. An error names the call, the place and the size that it was about.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace tandem::device::cuda {

// Throws device::Fault; out of memory is base::Error{kUnavailable}. `bytes` < 0: the call is about no size.
void check_call(cudaError_t status, const char* call, const char* file, int line, int64_t bytes = -1);

}  // namespace tandem::device::cuda

#define TANDEM_CUDA_CHECK(call) ::tandem::device::cuda::check_call((call), #call, __FILE__, __LINE__)
#define TANDEM_CUDA_CHECK_BYTES(call, bytes) \
  ::tandem::device::cuda::check_call((call), #call, __FILE__, __LINE__, (bytes))
