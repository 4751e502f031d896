#include "base/cpu.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <hwloc.h>
#include <memory>
#include <sched.h>
#include <thread>

#include "base/error.h"

namespace tandem::base {

namespace {

// Cores that a control group's quota amounts to (version 2's cpu.max of the root it shows, then version 1's), or 0.
double quota_cores() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) return std::strtod(quota.c_str(), nullptr) / period;
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double microseconds = 0;
  if (v1_quota >> microseconds && v1_period >> period && microseconds > 0 && period > 0) return microseconds / period;
  return 0;
}

int cores_in_mask() {
  // Without sysfs (a bare chroot) hwloc knows no cores and says so on the terminal.
  if (!std::filesystem::exists("/sys/devices/system/cpu")) return 0;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return 0;
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> guard(topology, hwloc_topology_destroy);
  if (hwloc_topology_load(topology) != 0) return 0;
  hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
  int cores = 0;
  if (hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) == 0) {
    const int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    for (int i = 0; i < count; ++i) {
      const hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, static_cast<unsigned>(i));
      if (core != nullptr && hwloc_bitmap_intersects(core->cpuset, allowed) != 0) ++cores;
    }
  }
  hwloc_bitmap_free(allowed);
  return cores;
}

}  // namespace

CpuLevel cpu_level() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return CpuLevel::kBaseline;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")) {
    return __builtin_cpu_supports("avx512vbmi") ? CpuLevel::kAvx512Vbmi : CpuLevel::kAvx512;
  }
  return CpuLevel::kAvx2;
}

std::string cpu_level_name(CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx512Vbmi:
      return "AVX-512 (F, BW, VL, DQ, VNNI, VBMI)";
    case CpuLevel::kAvx512:
      return "AVX-512 (F, BW, VL, DQ, VNNI)";
    case CpuLevel::kAvx2:
      return "AVX2 (FMA, F16C)";
    case CpuLevel::kBaseline:
      break;
  }
  return "below AVX2";
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.find(':') + 2, line.size()));
  }
  return "unknown";
}

void require_cpu() {
  if (cpu_level() == CpuLevel::kBaseline) {
    unavailable("processor", "{} lacks AVX2, FMA or F16C, which the host operations need", cpu_model());
  }
}

int usable_cores() {
  int cores = cores_in_mask();
  if (cores <= 0) cores = static_cast<int>(std::thread::hardware_concurrency());
  if (const double quota = quota_cores(); quota > 0) {
    cores = std::min(cores, std::max(1, static_cast<int>(std::floor(quota + 0.001))));
  }
  return std::max(1, cores);
}

}  // namespace tandem::base
