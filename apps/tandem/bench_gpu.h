// `tandem bench gpu`: a card's operations and whole steps against what the card can do at best.
#pragma once

#include <CLI/CLI.hpp>

namespace tandem::app {

void add_bench_gpu(CLI::App& bench);

}  // namespace tandem::app
