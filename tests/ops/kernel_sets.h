// Every set of host kernels that this processor can run.
#pragma once

#include <vector>

#include "ops/host/kernels.h"

namespace tandem::ops::host {

inline std::vector<const Kernels*> kernel_sets() {
  std::vector<const Kernels*> sets = {avx2_kernels(), avx512_kernels(), avx512vbmi_kernels()};
  std::erase(sets, nullptr);
  return sets;
}

}  // namespace tandem::ops::host
