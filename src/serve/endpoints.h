// The endpoints, one file each. A handler for another API is one more file and one more line in add_endpoints.
#pragma once

#include "serve/router.h"
#include "serve/service.h"

namespace tandem::serve {

// All of the below. The service must outlive the router.
void add_endpoints(Router& router, Service& service);

// GET /health: 200, or 503 while the model is loading. Needs no key.
void add_health_endpoints(Router& router, Service& service);
// GET /v1/models and /v1/models/{id}.
void add_models_endpoints(Router& router, Service& service);
// POST /v1/chat/completions.
void add_chat_endpoint(Router& router, Service& service);

}  // namespace tandem::serve
