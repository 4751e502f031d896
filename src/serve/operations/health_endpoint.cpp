#include <fmt/format.h>

#include "serve/endpoints.h"

namespace tandem::serve {

using base::Json;

namespace {

// So long a step takes only where something hangs.
constexpr double kStuckSeconds = 30;

HttpResponse health(const Service& service) {
  if (!service.ready()) return {.status = 503, .body = dump(Json{{"status", "loading the model"}})};
  const engine::EngineStatus engine = service.engine()->status();
  Json body = {{"status", "ok"}, {"running", engine.running}, {"waiting", engine.waiting}};
  if (!engine.failure.empty()) return {.status = 503, .body = dump(Json{{"status", engine.failure}})};
  if (engine.seconds_without_step <= kStuckSeconds) return {.body = dump(body)};
  body["status"] = fmt::format("no step has ended for {:.0f} s", engine.seconds_without_step);
  return {.status = 503, .body = dump(body)};
}

}  // namespace

void add_health_endpoint(Router& router, Service& service) {
  const auto answer = [&service](HttpRequest, Reply reply) { reply.send(health(service)); };
  router.add({.method = "GET", .path = "/health", .handler = answer, .open = true, .quick = true});
}

}  // namespace tandem::serve
