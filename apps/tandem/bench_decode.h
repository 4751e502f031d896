// `tandem bench decode`: tokens of a synthetic model in memory against the machine's read bandwidth.
#pragma once

#include <CLI/CLI.hpp>

namespace tandem::app {

void add_bench_decode(CLI::App& bench);

}  // namespace tandem::app
