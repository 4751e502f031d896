// `tandem bench ngram`: random rows of an n-gram table from disk and from the cache.
#pragma once

#include <CLI/CLI.hpp>

namespace tandem::app {

void add_bench_ngram(CLI::App& bench);

}  // namespace tandem::app
