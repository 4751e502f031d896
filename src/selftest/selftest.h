// Whether a card computes what the processor does: small synthetic models run on it, every operation compared with the
// processor's from the same inputs (parity_ops.h).
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/pool.h"
#include "device/device.h"
#include "ops/make_ops.h"
#include "selftest/parity_ops.h"

namespace tandem::selftest {

// One model in one kind of arithmetic.
struct Trial {
  std::string name;  // "flash-nvfp4 bf16"
  Reports reports;
  bool passed() const;
};

struct Settings {
  bool quick = false;                // shorter prompts
  std::set<std::string> portable{};  // operations that do without tensor cores
};

// Runs all trials; `told` is called after each. Throws what loading and the device throw.
std::vector<Trial> run(device::Device& device, base::WorkerPool& pool, const Settings& settings,
                       const std::function<void(const Trial&)>& told);

}  // namespace tandem::selftest
