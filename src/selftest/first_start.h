// The self-test at the first start on a card, with its driver and this build; its result is kept for the next ones.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "base/pool.h"
#include "device/cards.h"

namespace tandem::selftest {

// Where results are kept: $XDG_CACHE_HOME/tandem or ~/.cache/tandem; empty where neither is known.
std::filesystem::path results_folder();

// The operations that have to do without tensor cores on this card, for their results with them were wrong; usually
// none. Runs the quick self-test unless `folder` has a result for the card, the driver and this build, and says aloud
// what it found. Throws base::Error{kUnavailable} that names the operations where the portable kernels are wrong too.
std::set<std::string> portable_operations(device::Device& device, const device::Card& card, base::WorkerPool& pool,
                                          const std::filesystem::path& folder);

}  // namespace tandem::selftest
