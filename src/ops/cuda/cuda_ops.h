// The operations on an NVIDIA card: ops/cuda/<topic>.h has each of them as a function, this class gathers them.
#pragma once

#include <memory>

#include "device/device.h"
#include "ops/make_ops.h"

namespace tandem::ops::cuda {

// `device` is a card (device::cuda::CudaDevice) or a plan for one, and must outlive the operations.
std::unique_ptr<Ops> make_cuda_ops(device::Device& device, const OpsOptions& options);

}  // namespace tandem::ops::cuda
