#include <string>

#include "serve/embedded_files.h"
#include "serve/endpoints.h"

namespace tandem::serve {

void add_openapi_endpoint(Router& router) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name != "operations/openapi.json") continue;
    router.add({.method = "GET",
                .path = "/openapi.json",
                .handler = [&file](HttpRequest, Reply reply) { reply.send({.body = std::string(file.text)}); },
                .quick = true});
  }
}

}  // namespace tandem::serve
