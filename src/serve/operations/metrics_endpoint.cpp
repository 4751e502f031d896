#include "serve/endpoints.h"

namespace tandem::serve {

void add_metrics_endpoint(Router& router, Service& service) {
  router.add({.method = "GET",
              .path = "/metrics",
              .handler =
                  [&service](HttpRequest, Reply reply) {
                    std::string text;
                    if (service.ready()) {
                      const engine::EngineStatus engine = service.engine()->status();
                      text = service.metrics()->prometheus(service.model_id(), &engine);
                    } else {
                      text = service.metrics()->prometheus("", nullptr);
                    }
                    reply.send({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(text)});
                  },
              .quick = true,
              .polled = true});
}

}  // namespace tandem::serve
