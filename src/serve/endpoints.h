// The endpoints, a folder for each API. A handler more is one more file and one more line in add_endpoints.
#pragma once

#include "serve/http/router.h"
#include "serve/service.h"

namespace tandem::serve {

// All of the below. The service must outlive the router.
void add_endpoints(Router& router, Service& service);

// GET /health: 200, or 503 while the model is loading and where no step has ended for long though there is work. Needs
// no key.
void add_health_endpoint(Router& router, Service& service);
// GET /metrics, in Prometheus' text format.
void add_metrics_endpoint(Router& router, Service& service);
// GET /openapi.json: a description of all endpoints.
void add_openapi_endpoint(Router& router);
// GET /props, /slots and /version.
void add_state_endpoints(Router& router, Service& service);
// GET /v1/models and /v1/models/{id}.
void add_models_endpoints(Router& router, Service& service);
// POST /v1/chat/completions.
void add_chat_endpoint(Router& router, Service& service);
// POST /v1/responses; nothing is stored, so GET and DELETE of one find none.
void add_responses_endpoints(Router& router, Service& service);
// POST /v1/completions.
void add_completions_endpoint(Router& router, Service& service);
// POST /tokenize, /detokenize and /apply-template.
void add_token_endpoints(Router& router, Service& service);
// Anthropic's POST /v1/messages and /v1/messages/count_tokens.
void add_messages_endpoints(Router& router, Service& service);
// What clients need that know Ollama alone: /api/version, /api/tags, /api/ps, /api/show and /api/chat.
void add_ollama_endpoints(Router& router, Service& service);

}  // namespace tandem::serve
