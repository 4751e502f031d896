// Errors in the form of Anthropic's API.
#pragma once

#include "base/json.h"
#include "serve/http/errors.h"

namespace tandem::serve {

// {"type": "error", "error": {"type", "message", "details"}, "request_id"}; details only where the error has some.
base::Json anthropic_error_json(const ApiError& error);
// A full queue is 529 here, which is how clients of this API know an overloaded server.
HttpResponse anthropic_error(const ApiError& error);

}  // namespace tandem::serve
