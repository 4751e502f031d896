#include "serve/endpoints.h"

namespace tandem::serve {

using base::Json;

namespace {

Json model_json(const Service& service, const std::string& id) {
  return {{"id", id},
          {"object", "model"},
          {"created", service.created()},
          {"owned_by", "tandem"},
          {"max_model_len", service.engine()->status().max_context},
          {"input_modalities", Json::array({"text"})},
          {"output_modalities", Json::array({"text"})}};
}

}  // namespace

void add_models_endpoints(Router& router, Service& service) {
  router.add({.method = "GET",
              .path = "/v1/models",
              .handler =
                  [&service](HttpRequest, Reply reply) {
                    const Json data = Json::array({model_json(service, service.model_id())});
                    reply.send({.body = dump(Json{{"object", "list"}, {"data", data}})});
                  },
              .quick = true});
  router.add({.method = "GET",
              .path = "/v1/models/{id}",
              .handler =
                  [&service](HttpRequest request, Reply reply) {
                    if (const auto refusal = service.check_model(request.parameter)) {
                      reply.send(openai_error(*refusal));
                    } else {
                      reply.send({.body = dump(model_json(service, request.parameter))});
                    }
                  },
              .quick = true});
}

}  // namespace tandem::serve
