// What the host adds between two decode steps of a card, for `tandem bench gpu`.
#pragma once

#include <string>

#include "bench_report.h"
#include "engine/loaded_model.h"

namespace tandem::app {

// Runs an engine with one request at a time on a device::cuda::WatchedDevice, `loaded.device`, and tells
// host.NAME.*.gap_us, what the host adds to a step, the median: from choosing a token to launching the next step, and
// what it does too late while that runs. It is the time from one step's end on the card to the next one's less the
// time that the recording takes where nothing keeps it waiting.
void measure_host_gap(BenchReport& report, const std::string& name, engine::LoadedModel loaded, int steps);

}  // namespace tandem::app
