// What the host adds between two decode steps of a card, for `tandem bench gpu`.
#pragma once

#include <string>

#include "bench_report.h"
#include "engine/loaded_model.h"

namespace tandem::app {

// Runs an engine with one request at a time on a device::cuda::WatchedDevice, `loaded.device`, and tells
// host.NAME.*.gap_us: from the end of one step's recording on the card to the beginning of the next, the median; all
// that the engine does between them, from choosing the token to the launch. The beginning is taken as the end less the
// time that the recording takes where nothing keeps it waiting.
void measure_host_gap(BenchReport& report, const std::string& name, engine::LoadedModel loaded, int steps);

}  // namespace tandem::app
