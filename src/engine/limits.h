// The engine's limits: what the options leave open, and what cannot be.
#pragma once

#include "engine/engine.h"

namespace tandem::engine {

// The options with every zero that means "what fits this model" resolved. Throws base::Error{kBadInput} for limits that
// cannot be, naming the option and the figures.
EngineOptions resolve_limits(EngineOptions options, const model::Config& config);

}  // namespace tandem::engine
