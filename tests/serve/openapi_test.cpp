// The description of the API agrees with what is served.
#include <functional>
#include <gmock/gmock.h>
#include <set>

#include "base/file.h"
#include "base/version.h"
#include "serve/endpoints.h"

namespace tandem::serve {
namespace {

using base::Json;

// The document as it is served.
Json document(const Router& router) {
  Json out;
  for (const Route& route : router.routes()) {
    if (route.path != "/openapi.json") continue;
    const auto exchange = std::make_shared<Exchange>(1 << 20, [] {});
    route.handler({}, Reply(exchange));
    out = base::parse_json(exchange->take().head.value().body, "openapi.json");
  }
  return out;
}

struct Served {
  Served() { add_endpoints(router, service); }
  Service service{{}};
  Router router;
};

TEST(OpenApi, HasEveryEndpointAndNoOther) {
  const Served served;
  const Json doc = document(served.router);
  EXPECT_TRUE(doc.at("openapi").get<std::string>().starts_with("3.1"));
  EXPECT_EQ(doc.at("info").at("version"), base::version());
  std::set<std::string> routes, described;
  for (const Route& route : served.router.routes()) {
    if (route.path == "/" || route.path.starts_with("/web/")) continue;  // the page is no API
    // These only tell that there is no WebSocket, and that nothing is stored.
    if (route.path == "/v1/responses/{id}" || (route.path == "/v1/responses" && route.method == "GET")) continue;
    routes.insert(route.method + " " + route.path);
  }
  for (const auto& [path, operations] : doc.at("paths").items()) {
    for (const auto& [method, operation] : operations.items()) {
      std::string name = method;
      for (char& c : name) c = static_cast<char>(c - 'a' + 'A');
      described.insert(name.append(" ").append(path));
    }
  }
  EXPECT_EQ(described, routes);
}

void each_object(const Json& value, const std::function<void(const Json&)>& visit) {
  if (value.is_object()) visit(value);
  if (!value.is_structured()) return;
  for (const Json& item : value) each_object(item, visit);
}

TEST(OpenApi, IsWholeInItself) {
  const Served served;
  const Json doc = document(served.router);
  each_object(doc, [&](const Json& object) {
    if (!object.contains("$ref")) return;
    const std::string target = object.at("$ref");
    ASSERT_TRUE(target.starts_with("#/")) << target;
    EXPECT_TRUE(doc.contains(Json::json_pointer(target.substr(1)))) << target;
  });
  std::set<std::string> names;
  for (const auto& [path, operations] : doc.at("paths").items()) {
    for (const auto& [method, operation] : operations.items()) {
      EXPECT_TRUE(names.insert(operation.at("operationId")).second) << path;
      EXPECT_FALSE(operation.at("summary").get<std::string>().empty());
      EXPECT_TRUE(operation.at("responses").contains("200"));
      const bool parameter = path.find('{') != std::string::npos;
      EXPECT_EQ(operation.contains("parameters"), parameter) << path;
    }
  }
}

TEST(OpenApi, NamesTheFieldsThatTheDocumentationNames) {
  const Served served;
  const std::string text = base::read_text(TANDEM_SOURCE_DIR "/docs/api.md", 1 << 20);
  const Json doc = document(served.router);
  for (const auto& [name, schema] : doc.at("components").at("schemas").items()) {
    if (!name.ends_with("Request")) continue;
    for (const auto& [field, meaning] : schema.at("properties").items()) {
      EXPECT_THAT(text, ::testing::HasSubstr("`" + field)) << name;
    }
  }
}

// Whether a value has one of the types that a schema names; schemas of other forms say nothing here.
bool has_type(const Json& value, const Json& schema) {
  if (!schema.contains("type")) return true;
  const Json types = schema.at("type").is_array() ? schema.at("type") : Json::array({schema.at("type")});
  for (const Json& type : types) {
    if (type == "null" && value.is_null()) return true;
    if (type == "string" && value.is_string()) return true;
    if (type == "boolean" && value.is_boolean()) return true;
    if (type == "integer" && value.is_number_integer()) return true;
    if (type == "number" && value.is_number()) return true;
    if (type == "array" && value.is_array()) return true;
    if (type == "object" && value.is_object()) return true;
  }
  return false;
}

TEST(OpenApi, DescribesWhatRealClientsSend) {
  const Served served;
  const Json doc = document(served.router);
  const std::filesystem::path folder = TANDEM_CAPTURES;
  int bodies = 0;
  for (const Json& entry : base::parse_json(base::read_text(folder / "index.json", 1 << 24), "index.json")) {
    const std::string file = entry.at("file");
    const std::string url = entry.at("url");
    const std::string path = url.substr(0, url.find('?'));
    const Json capture = base::parse_json(base::read_text(folder / file, 1 << 24), file);
    const Json& body = base::json_member(capture, "body");
    if (!body.is_object() || !doc.at("paths").contains(path)) continue;
    const Json& request = doc.at("paths").at(path).at("post").at("requestBody").at("content").at("application/json");
    const std::string reference = request.at("schema").at("$ref");
    const Json& schema = doc.at(Json::json_pointer(reference.substr(1)));
    for (const auto& [field, type] : schema.at("properties").items()) {
      if (!body.contains(field)) continue;
      EXPECT_TRUE(has_type(body.at(field), type)) << file << ": " << field;
    }
    for (const Json& field : schema.at("required")) EXPECT_TRUE(body.contains(field.get<std::string>())) << file;
    ++bodies;
  }
  EXPECT_GT(bodies, 60);
}

}  // namespace
}  // namespace tandem::serve
