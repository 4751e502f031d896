#include "serve/endpoints.h"

#include "serve/web_page.h"

namespace tandem::serve {

void add_endpoints(Router& router, Service& service) {
  add_health_endpoint(router, service);
  add_metrics_endpoint(router, service);
  add_openapi_endpoint(router);
  add_state_endpoints(router, service);
  add_models_endpoints(router, service);
  add_chat_endpoint(router, service);
  add_responses_endpoints(router, service);
  add_completions_endpoint(router, service);
  add_token_endpoints(router, service);
  add_messages_endpoints(router, service);
  add_ollama_endpoints(router, service);
  add_web_page_routes(router, service.has_web_page());
}

}  // namespace tandem::serve
