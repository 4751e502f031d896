// The operations of a device.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/cpu.h"
#include "base/pool.h"
#include "device/device.h"
#include "ops/ops.h"

namespace tandem::ops {

struct OpsOptions {
  bool round_inputs = true;           // the inputs of matrix products are rounded to BF16, else nothing is cast
  bool bf16_experts = false;          // a card's experts of many columns in BF16 products, else canonical
  std::optional<base::CpuLevel> isa;  // the host's kernels; none takes the processor's best
  std::set<std::string> portable{};   // a card's operations that do without tensor cores, by name ("linear")
};

// Device and pool must outlive them.
std::unique_ptr<Ops> make_ops(device::Device& device, base::WorkerPool& pool, const OpsOptions& options);

}  // namespace tandem::ops
