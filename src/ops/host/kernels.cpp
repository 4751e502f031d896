#include "ops/host/kernels.h"

#include <algorithm>
#include <cstring>

#include "base/cpu.h"
#include "numeric/iquant_codes.h"
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
  static const Kernels& chosen = kernels(std::max(base::cpu_level(), base::CpuLevel::kAvx2));
  return chosen;
}

const Kernels& kernels(base::CpuLevel level) {
  base::require_cpu(level);
  switch (level) {
    case base::CpuLevel::kAvx512Vbmi:
      return avx512vbmi::kTable;
    case base::CpuLevel::kAvx512:
      return avx512::kTable;
    default:
      return avx2::kTable;
  }
}

namespace {

uint8_t weight_byte(uint32_t magnitude, bool negative) {
  return static_cast<uint8_t>(negative ? 128 - magnitude : 128 + magnitude);
}
uint32_t magnitude_at(uint64_t entry, size_t i) {
  return static_cast<uint32_t>(entry >> (8 * i)) & 255U;
}
void add_bits(uint8_t& byte, uint32_t bits, size_t at) {
  byte = static_cast<uint8_t>(byte | bits << at);
}

void make_iq2s(IquantTables& tables) {
  for (size_t code = 0; code < 1024; ++code) {
    const uint64_t entry = numeric::iq2s_grid()[numeric::iq2s_entries()[code]];
    std::memcpy(tables.iq2s[code], &entry, sizeof entry);
    for (size_t i = 0; i < 8; ++i) {
      if (magnitude_at(entry, i) == 43) add_bits(tables.iq2s_shared[code % 64], 1, i < 4 ? 2 * i + 1 : 2 * i - 8);
    }
  }
  for (size_t code = 0; code < 1024; ++code) {
    const uint64_t entry = numeric::iq2s_grid()[numeric::iq2s_entries()[code]];
    for (size_t i = 0; i < 8; ++i) {
      const uint32_t shared = tables.iq2s_shared[code % 64] >> (i < 4 ? 2 * i + 1 : 2 * i - 8) & 1U;
      const uint32_t set = magnitude_at(entry, i) == 25 ? 0 : magnitude_at(entry, i) == 8 ? 1 : 2;
      add_bits(tables.iq2s_own[code], set - shared, i < 4 ? 2 * i : 2 * i - 7);
    }
  }
  for (uint32_t index = 0; index < 64; ++index) {
    constexpr uint32_t kMagnitudes[4] = {25, 8, 8, 43};
    for (uint32_t s = 0; s < 2; ++s) {
      tables.iq2s_weights[s][index] = weight_byte(kMagnitudes[index & 3], (index >> (2 + s) & 1) != 0);
    }
  }
}

void make_iq3s(IquantTables& tables) {
  constexpr size_t kSharedBits[4] = {2, 0, 6, 4};
  for (size_t i = 0; i < 4; ++i) {
    uint32_t count[2] = {};
    uint32_t number[16] = {};  // of a magnitude in its set or among the others
    const auto in_set = [&](uint32_t magnitude) { return numeric::kIq3sSets[i] >> (magnitude / 2) & 1U; };
    for (uint32_t magnitude = 1; magnitude < 16; magnitude += 2) {
      number[magnitude] = count[in_set(magnitude)]++;
      for (uint32_t index = 0; index < 64; ++index) {
        if ((index & 7) != (number[magnitude] | in_set(magnitude) << 2)) continue;
        tables.iq3s_weights[i][index] = weight_byte(magnitude, (index & 8) != 0);
      }
    }
    for (size_t code = 0; code < 512; ++code) {
      const uint32_t entry = numeric::iq3s_grid()[numeric::iq3s_entries()[code]];
      tables.iq3s[code] = entry;
      add_bits(tables.iq3s_own[code], number[magnitude_at(entry, i)], 2 * i);
      add_bits(tables.iq3s_shared[code % 256], in_set(magnitude_at(entry, i)), kSharedBits[i]);
    }
  }
}

void make_iq3xxs(IquantTables& tables) {
  constexpr uint32_t kMagnitudes[8] = {4, 12, 20, 28, 36, 44, 52, 62};
  for (size_t code = 0; code < 256; ++code) {
    const uint32_t entry = numeric::iq3xxs_grid()[code];
    tables.iq3xxs[code] = entry;
    for (size_t i = 0; i < 4; ++i) add_bits(tables.iq3xxs_halves[i / 2][code], magnitude_at(entry, i) / 8, i % 2 * 4);
  }
  for (size_t index = 0; index < 64; ++index)
    tables.iq3xxs_magnitudes[index] = weight_byte(kMagnitudes[index & 7], false);
}

IquantTables make_tables() {
  IquantTables tables{};
  make_iq2s(tables);
  make_iq3s(tables);
  make_iq3xxs(tables);
  return tables;
}

}  // namespace

const IquantTables& iquant_tables() {
  static const IquantTables tables = make_tables();
  return tables;
}

}  // namespace tandem::ops::host
