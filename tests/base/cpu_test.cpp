#include "base/cpu.h"

#include <gtest/gtest.h>
#include <hwloc.h>
#include <set>

#include "base/error.h"

namespace tandem::base {
namespace {

// A machine of `description` in hwloc's synthetic form, with processors [0, slow_end) marked as the slower kind.
std::string machine(const char* description, int slow_end) {
  hwloc_topology_t topology = nullptr;
  hwloc_topology_init(&topology);
  hwloc_topology_set_synthetic(topology, description);
  hwloc_topology_load(topology);
  if (slow_end > 0) {
    hwloc_bitmap_t all = hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology));
    hwloc_bitmap_t slow = hwloc_bitmap_alloc();
    hwloc_bitmap_set_range(slow, 0, slow_end - 1);
    hwloc_bitmap_andnot(all, all, slow);
    hwloc_cpukinds_register(topology, slow, 0, 0, nullptr, 0);
    hwloc_cpukinds_register(topology, all, 1, 0, nullptr, 0);
    hwloc_bitmap_free(slow);
    hwloc_bitmap_free(all);
  }
  char* xml = nullptr;
  int bytes = 0;
  hwloc_topology_export_xmlbuffer(topology, &xml, &bytes, 0);
  std::string text(xml);
  hwloc_free_xmlbuffer(topology, xml);
  hwloc_topology_destroy(topology);
  return text;
}

TEST(CoresBySpeed, EveryPhysicalCoreOnceWithItsLogicalProcessors) {
  const auto cores = cores_by_speed(machine("package:2 core:3 pu:2", 0));
  EXPECT_EQ(cores, (std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}}));
}

TEST(CoresBySpeed, FastKindsComeFirst) {
  const auto cores = cores_by_speed(machine("package:1 core:4 pu:1", 2));
  EXPECT_EQ(cores, (std::vector<std::vector<int>>{{2}, {3}, {0}, {1}}));
}

TEST(CoresBySpeed, ThisMachineHasOne) {
  for (const auto& core : cores_by_speed()) EXPECT_FALSE(core.empty());
  EXPECT_GE(usable_cores(), 1);
}

TEST(CpuLevels, NameWhatIsMissing) {
  const auto only = [](const std::set<std::string>& names) {
    return [names](const std::string& name) { return names.contains(name); };
  };
  const std::set<std::string> haswell = {"AVX2", "FMA", "F16C"};
  std::set<std::string> cascade_lake = haswell;
  cascade_lake.insert({"AVX512F", "AVX512BW", "AVX512VL", "AVX512DQ", "AVX512_VNNI"});
  using Names = std::vector<std::string>;
  EXPECT_EQ(features_missing(CpuLevel::kAvx2, only({"AVX2", "F16C"})), (Names{"FMA"}));
  EXPECT_EQ(features_missing(CpuLevel::kAvx2, only(haswell)), Names{});
  EXPECT_EQ(features_missing(CpuLevel::kAvx512, only(haswell)),
            (Names{"AVX512F", "AVX512BW", "AVX512VL", "AVX512DQ", "AVX512_VNNI"}));
  EXPECT_EQ(features_missing(CpuLevel::kAvx512, only(cascade_lake)), Names{});
  EXPECT_EQ(features_missing(CpuLevel::kAvx512Vbmi, only(cascade_lake)), (Names{"AVX512_VBMI"}));
  EXPECT_EQ(features_missing(CpuLevel::kBaseline, only({})), Names{});
}

TEST(CpuLevels, OfThisProcessorCanBeUsed) {
  EXPECT_NO_THROW(require_cpu(cpu_level()));
  if (cpu_level() != CpuLevel::kAvx512Vbmi) {
    EXPECT_THROW(require_cpu(CpuLevel::kAvx512Vbmi), Error);
  }
}

}  // namespace
}  // namespace tandem::base
