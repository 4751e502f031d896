// What this processor can do, and how many of its cores this process may use.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tandem::base {

enum class CpuLevel {
  kBaseline,    // below what the host operations need
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // and AVX-512 F, BW, VL, DQ, VNNI
  kAvx512Vbmi,  // and AVX-512 VBMI, which looks codebooks up in registers
};

CpuLevel cpu_level();
// The level in words, for messages and bench reports.
std::string cpu_level_name(CpuLevel level);
// What a level needs, as "AVX512_VBMI", of which `has` says no. Empty: the level can be used.
std::vector<std::string> features_missing(CpuLevel level, const std::function<bool(const std::string&)>& has);
// The processor's model name as the system tells it.
std::string cpu_model();
// Throws base::Error{kUnavailable} where the processor is below the level, with what it lacks.
void require_cpu(CpuLevel level = CpuLevel::kAvx2);
// The physical cores that the affinity mask allows, each as the numbers of its allowed logical processors, in the order
// in which workers should take them: fast kinds of core before slow ones, as far as the system tells them apart. Empty
// where the system tells nothing. `topology_xml` (an hwloc topology) takes the place of this machine, for tests; then
// all its processors are allowed.
std::vector<std::vector<int>> cores_by_speed(const std::string& topology_xml = {});
// Physical cores this process may use: the affinity mask and the control group's CPU quota count. At least 1. `cores`
// is what cores_by_speed() gave: reading the topology takes some milliseconds, once is enough.
int usable_cores(const std::vector<std::vector<int>>& cores);
inline int usable_cores() {
  return usable_cores(cores_by_speed());
}

}  // namespace tandem::base
