#include "ops/host/kernels.h"

#include "base/cpu.h"

namespace tandem::ops::host {

namespace avx2 {
extern const Kernels kTable;
}
namespace avx512 {
extern const Kernels kTable;
}

const Kernels* avx2_kernels() {
  return base::cpu_level() >= base::CpuLevel::kAvx2 ? &avx2::kTable : nullptr;
}

const Kernels* avx512_kernels() {
  return base::cpu_level() >= base::CpuLevel::kAvx512 ? &avx512::kTable : nullptr;
}

const Kernels& kernels() {
  base::require_cpu();
  static const Kernels& chosen = avx512_kernels() != nullptr ? *avx512_kernels() : *avx2_kernels();
  return chosen;
}

}  // namespace tandem::ops::host
