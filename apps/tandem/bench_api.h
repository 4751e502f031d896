// `tandem bench api`: what stands around a model, measured over one that plays a script.
#pragma once

#include <CLI/CLI.hpp>

namespace tandem::app {

void add_bench_api(CLI::App& bench);

}  // namespace tandem::app
