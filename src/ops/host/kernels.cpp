#include "ops/host/kernels.h"

#include <algorithm>
#include <initializer_list>

#include "base/cpu.h"
#include "numeric/iquant_grids.h"

namespace tandem::ops::host {

namespace avx2 {
extern const Kernels kTable;
}
namespace avx512 {
extern const Kernels kTable;
}
namespace avx512vbmi {
extern const Kernels kTable;
}

const Kernels* avx2_kernels() {
  return base::cpu_level() >= base::CpuLevel::kAvx2 ? &avx2::kTable : nullptr;
}

const Kernels* avx512_kernels() {
  return base::cpu_level() >= base::CpuLevel::kAvx512 ? &avx512::kTable : nullptr;
}

const Kernels* avx512vbmi_kernels() {
  return base::cpu_level() >= base::CpuLevel::kAvx512Vbmi ? &avx512vbmi::kTable : nullptr;
}

const Kernels& kernels() {
  base::require_cpu();
  static const Kernels& chosen = avx512vbmi_kernels() != nullptr ? *avx512vbmi_kernels()
                                 : avx512_kernels() != nullptr   ? *avx512_kernels()
                                                                 : *avx2_kernels();
  return chosen;
}

namespace {

uint32_t code_of(std::initializer_list<uint32_t> levels, uint32_t magnitude) {
  return static_cast<uint32_t>(std::find(levels.begin(), levels.end(), magnitude) - levels.begin());
}

IquantTables make_tables() {
  IquantTables tables{};
  tables.iq2s = reinterpret_cast<const uint32_t*>(numeric::iq2s_grid().data());
  tables.iq3xxs = numeric::iq3xxs_grid().data();
  tables.iq3s = numeric::iq3s_grid().data();
  for (size_t e = 0; e < 1024; ++e) {
    for (size_t i = 0; i < 8; ++i) {
      const auto magnitude = static_cast<uint32_t>(numeric::iq2s_grid()[e] >> (8 * i)) & 255U;
      tables.iq2s_halves[i / 4][e] |= static_cast<uint8_t>(code_of({8, 25, 43}, magnitude) << (2 * (i % 4)));
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    for (size_t e = 0; e < 256; ++e) {
      const uint32_t magnitude = numeric::iq3xxs_grid()[e] >> (8 * i) & 255U;
      tables.iq3xxs_halves[i / 2][e] |=
          static_cast<uint8_t>(code_of({4, 12, 20, 28, 36, 44, 52, 62}, magnitude) << (4 * (i % 2)));
    }
    for (size_t e = 0; e < 512; ++e) {
      const uint32_t magnitude = numeric::iq3s_grid()[e] >> (8 * i) & 255U;
      tables.iq3s_halves[i / 2][e] |= static_cast<uint8_t>(magnitude << (4 * (i % 2)));
    }
  }
  return tables;
}

}  // namespace

const IquantTables& iquant_tables() {
  static const IquantTables tables = make_tables();
  return tables;
}

}  // namespace tandem::ops::host
