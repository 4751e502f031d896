#include "base/cpu.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/ranges.h>
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

// Lower is slower; -1 where the system does not tell kinds apart.
int efficiency_of(hwloc_topology_t topology, hwloc_const_bitmap_t cpus) {
  const int kind = hwloc_cpukinds_get_by_cpuset(topology, cpus, 0);
  int efficiency = -1;
  if (kind < 0 ||
      hwloc_cpukinds_get_info(topology, static_cast<unsigned>(kind), nullptr, &efficiency, nullptr, nullptr, 0) != 0) {
    return -1;
  }
  return efficiency;
}

std::vector<int> numbers_in(hwloc_const_bitmap_t cpus) {
  std::vector<int> numbers;
  for (int cpu = hwloc_bitmap_first(cpus); cpu >= 0; cpu = hwloc_bitmap_next(cpus, cpu)) numbers.push_back(cpu);
  return numbers;
}

// What each level adds to the one below it.
struct Feature {
  const char* name;
  CpuLevel level;
};
constexpr Feature kFeatures[] = {
    {"AVX2", CpuLevel::kAvx2},       {"FMA", CpuLevel::kAvx2},           {"F16C", CpuLevel::kAvx2},
    {"AVX512F", CpuLevel::kAvx512},  {"AVX512BW", CpuLevel::kAvx512},    {"AVX512VL", CpuLevel::kAvx512},
    {"AVX512DQ", CpuLevel::kAvx512}, {"AVX512_VNNI", CpuLevel::kAvx512}, {"AVX512_VBMI", CpuLevel::kAvx512Vbmi}};

bool processor_has(const std::string& feature) {
  __builtin_cpu_init();
  if (feature == "AVX2") return __builtin_cpu_supports("avx2") != 0;
  if (feature == "FMA") return __builtin_cpu_supports("fma") != 0;
  if (feature == "F16C") return __builtin_cpu_supports("f16c") != 0;
  if (feature == "AVX512F") return __builtin_cpu_supports("avx512f") != 0;
  if (feature == "AVX512BW") return __builtin_cpu_supports("avx512bw") != 0;
  if (feature == "AVX512VL") return __builtin_cpu_supports("avx512vl") != 0;
  if (feature == "AVX512DQ") return __builtin_cpu_supports("avx512dq") != 0;
  if (feature == "AVX512_VNNI") return __builtin_cpu_supports("avx512vnni") != 0;
  return feature == "AVX512_VBMI" && __builtin_cpu_supports("avx512vbmi") != 0;
}

}  // namespace

CpuLevel cpu_level() {
  for (const CpuLevel level : {CpuLevel::kAvx512Vbmi, CpuLevel::kAvx512, CpuLevel::kAvx2}) {
    if (features_missing(level, processor_has).empty()) return level;
  }
  return CpuLevel::kBaseline;
}

std::vector<std::string> features_missing(CpuLevel level, const std::function<bool(const std::string&)>& has) {
  std::vector<std::string> missing;
  for (const Feature& feature : kFeatures) {
    if (feature.level <= level && !has(feature.name)) missing.emplace_back(feature.name);
  }
  return missing;
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

void require_cpu(CpuLevel level) {
  const auto missing = features_missing(level, processor_has);
  if (missing.empty()) return;
  unavailable("processor", "{} lacks {}, which kernels for {} need", cpu_model(), fmt::join(missing, ", "),
              cpu_level_name(level));
}

std::vector<std::vector<int>> cores_by_speed(const std::string& topology_xml) {
  // Without sysfs (a bare chroot) hwloc knows no cores and says so on the terminal.
  if (topology_xml.empty() && !std::filesystem::exists("/sys/devices/system/cpu")) return {};
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {};
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> guard(topology, hwloc_topology_destroy);
  if (!topology_xml.empty() &&
      hwloc_topology_set_xmlbuffer(topology, topology_xml.c_str(), static_cast<int>(topology_xml.size()) + 1) != 0) {
    return {};
  }
  if (hwloc_topology_load(topology) != 0) return {};
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> allowed(hwloc_bitmap_alloc_full(), hwloc_bitmap_free);
  if (topology_xml.empty() && hwloc_get_cpubind(topology, allowed.get(), HWLOC_CPUBIND_PROCESS) != 0) return {};

  std::vector<std::pair<int, std::vector<int>>> cores;  // by efficiency
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> mine(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  for (hwloc_obj_t core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, nullptr); core != nullptr;
       core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) {
    hwloc_bitmap_and(mine.get(), core->cpuset, allowed.get());
    if (hwloc_bitmap_iszero(mine.get()) == 0) {
      cores.emplace_back(efficiency_of(topology, core->cpuset), numbers_in(mine.get()));
    }
  }
  std::stable_sort(cores.begin(), cores.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::vector<int>> ordered;
  ordered.reserve(cores.size());
  for (auto& core : cores) ordered.push_back(std::move(core.second));
  return ordered;
}

int usable_cores(const std::vector<std::vector<int>>& known) {
  int cores = static_cast<int>(known.size());
  if (cores <= 0) cores = static_cast<int>(std::thread::hardware_concurrency());
  if (const double quota = quota_cores(); quota > 0) {
    cores = std::min(cores, std::max(1, static_cast<int>(std::floor(quota + 0.001))));
  }
  return std::max(1, cores);
}

}  // namespace tandem::base
