// What the server is and does at the moment: /props, /slots, /version.
#include "base/version.h"
#include "serve/endpoints.h"

namespace tandem::serve {

using base::Json;

namespace {

Json props(const Service& service) {
  const auto engine = service.engine();
  const engine::EngineStatus status = engine->status();
  return {{"model_alias", service.model_id()},
          {"build_info", "tandem " + base::build_description()},
          {"total_slots", status.max_concurrency},
          {"max_queue", status.max_queue},
          {"n_ctx", status.max_context},
          {"kv_capacity", status.kv_capacity},
          {"default_generation_settings", {{"n_ctx", status.max_context}}},
          {"modalities", {{"vision", false}, {"audio", false}}},
          {"chat_template", engine->chat_template().has_value()}};
}

Json slot_json(int id, const engine::RunningRequest& request) {
  const bool reading = request.prompt_done < request.prompt_tokens;
  const double rate = request.decode_seconds > 0 ? request.completion_tokens / request.decode_seconds : 0;
  return {{"id", id},
          {"state", reading ? "prefill" : "decode"},
          {"request_id", request.id},
          {"prompt_tokens", request.prompt_tokens},
          {"prompt_done", request.prompt_done},
          {"cached_tokens", request.cached_tokens},
          {"completion_tokens", request.completion_tokens},
          {"seconds", request.seconds},
          {"tokens_per_second", rate}};
}

Json slots(const Service& service) {
  const engine::EngineStatus status = service.engine()->status();
  Json out = Json::array();
  for (const engine::RunningRequest& request : status.requests) {
    out.push_back(slot_json(static_cast<int>(out.size()), request));
  }
  while (static_cast<int>(out.size()) < status.max_concurrency) {
    out.push_back({{"id", out.size()}, {"state", "idle"}});
  }
  return out;
}

}  // namespace

void add_state_endpoints(Router& router, Service& service) {
  const auto add = [&](const char* path, auto make) {
    router.add({.method = "GET",
                .path = path,
                .handler = [&service, make](HttpRequest, Reply reply) { reply.send({.body = dump(make(service))}); },
                .quick = true,
                .polled = true});
  };
  add("/props", props);
  add("/slots", slots);
  add("/version", [](const Service&) { return Json{{"version", base::version()}}; });
}

}  // namespace tandem::serve
