// Constrained decoding under the tools of an agent: how long compiling and masks take.
#pragma once

#include "base/json.h"

namespace tandem::app {

// Measures on the calling thread, with a vocabulary of 248,320 made-up tokens, and adds to a report (bench_report.h):
// `raw` gets the times in seconds, `figures` grammar.compile_ms, vocabulary.build_ms, mask.median_us, mask.p99_us and
// mask.first_visit_ms (docs/bench.md). Takes some seconds and 100 MB.
void measure_grammar(int rounds, base::Json& raw, base::Json& figures);

}  // namespace tandem::app
