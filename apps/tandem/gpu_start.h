// How long a model takes from the page cache to a card, for `tandem bench gpu`.
#pragma once

#include <filesystem>
#include <memory>

#include "gpu_steps.h"

namespace tandem::app {

// Writes the first model of the options as an artifact into `folder`, which must not be there yet, and removes it
// afterwards. Loads its weights again and again, and copies as many bytes from page-locked and from pageable memory:
// start.copy_fraction is the time of the load over that of the page-locked copy.
void measure_start(Measured& measured, const std::filesystem::path& folder,
                   const std::shared_ptr<device::cuda::WatchedDevice>& card);

}  // namespace tandem::app
