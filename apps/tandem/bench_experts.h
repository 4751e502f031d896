// `tandem bench experts`: the host's expert kernels against the machine's read bandwidth.
#pragma once

#include <CLI/CLI.hpp>

namespace tandem::app {

void add_bench_experts(CLI::App& bench);

}  // namespace tandem::app
