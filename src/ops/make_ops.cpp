#include "ops/make_ops.h"

#include "ops/host/host_ops.h"

#ifdef TANDEM_WITH_CUDA
#include "ops/cuda/cuda_ops.h"
#endif

namespace tandem::ops {

std::unique_ptr<Ops> make_ops(device::Device& device, base::WorkerPool& pool, const OpsOptions& options) {
#ifdef TANDEM_WITH_CUDA
  if (!device.is_host()) return cuda::make_cuda_ops(device, options);
#endif
  if (!device.is_host()) base::internal_error("ops", "{} has no operations in this build", device.describe());
  return std::make_unique<host::HostOps>(pool, options.round_inputs,
                                         options.isa ? host::kernels(*options.isa) : host::kernels());
}

}  // namespace tandem::ops
