// `tandem bench dense`: the host's products with dense weights against the machine's read bandwidth.
#pragma once

#include <CLI/CLI.hpp>

namespace tandem::app {

void add_bench_dense(CLI::App& bench);

}  // namespace tandem::app
