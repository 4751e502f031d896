#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "commands.h"
#include "options.h"
#include "serve/endpoints.h"
#include "serve/http/auth.h"
#include "serve/http/http_server.h"

namespace tandem::app {
namespace {

constexpr const char* kNetwork = "Network";
constexpr int64_t kMostRequestMib = 4096;

struct ServeOptions {
  engine::EngineOptions engine;
  serve::ServerOptions server;
  serve::ServiceOptions service;
  std::string key_file;
  std::vector<std::string> allowed_hosts;
  int64_t port = 8080;
  int64_t max_request_mib = 64;
  bool no_web_page = false;
  int64_t request_log_mib = 16;
  std::vector<std::string> guards_off;
  bool json = false;
};

engine::Guards read_guards(const std::vector<std::string>& off) {
  engine::Guards guards;
  for (const std::string& name : off) {
    if (name == "empty-answer") {
      guards.empty_answer = false;
    } else if (name == "open-thinking") {
      guards.open_thinking = false;
    } else if (name == "repeat") {
      guards.repeat = false;
    } else {
      base::bad_input("--guards-off", "{} is none of empty-answer, open-thinking, repeat", name);
    }
  }
  return guards;
}

void check(ServeOptions& options) {
  // The rest of loading fails later, but this mistake is common and need not open a port.
  if (!std::filesystem::exists(options.engine.artifact)) {
    base::bad_input(options.engine.artifact.string(), "does not exist");
  }
  if (options.port < 0 || options.port > 65535) base::bad_input("--port", "{} is outside [0, 65535]", options.port);
  if (options.max_request_mib < 1 || options.max_request_mib > kMostRequestMib) {
    base::bad_input("--max-request-mib", "{} is outside [1, {}]", options.max_request_mib, kMostRequestMib);
  }
  if (options.server.limits.connections < 1) {
    base::bad_input("--max-connections", "{} is below 1", options.server.limits.connections);
  }
  if (options.request_log_mib < 1 || options.request_log_mib > kMostRequestMib) {
    base::bad_input("--request-log-mib", "{} is outside [1, {}]", options.request_log_mib, kMostRequestMib);
  }
  options.server.request_log.file_bytes = static_cast<size_t>(options.request_log_mib) << 20;
  options.engine.guards = read_guards(options.guards_off);
  options.server.port = static_cast<uint16_t>(options.port);
  serve::ServerLimits& limits = options.server.limits;
  limits.body_bytes = static_cast<size_t>(options.max_request_mib) << 20;
  limits.all_bodies_bytes = 4 * limits.body_bytes;
  options.server.stop_on_signals = true;
  options.service.web_page = !options.no_web_page;
}

serve::ApiKeys read_keys(const ServeOptions& options) {
  serve::ApiKeys keys;
  if (!options.key_file.empty()) keys.add_file(options.key_file);
  const char* key = std::getenv("TANDEM_API_KEY");
  if (key != nullptr && *key != '\0') keys.add(key, "TANDEM_API_KEY");
  return keys;
}

void print_address(const serve::HttpServer& server, bool json) {
  if (json) {
    fmt::print("{}\n", serve::dump(base::Json{{"event", "listening"}, {"url", server.url()}, {"port", server.port()}}));
  } else {
    fmt::print("listening on {}\n", server.url());
  }
  std::fflush(stdout);
}

// Loads the model beside the server, so that /health answers and signals are obeyed meanwhile.
class Loader {
 public:
  Loader(const engine::EngineOptions& options, serve::Service& service, serve::HttpServer& server)
      : thread_([this, &options, &service, &server] { load(options, service, server); }) {}

  ~Loader() {
    if (thread_.joinable()) thread_.join();
  }
  // To be called when the server has ended; rethrows what loading failed with.
  void finish() {
    if (!ended_) {
      // A stop during loading. Reading weights can't be interrupted and leaves nothing that must be put away.
      std::fflush(stdout);
      std::_Exit(0);
    }
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void load(const engine::EngineOptions& options, serve::Service& service, serve::HttpServer& server) {
    try {
      service.set_engine(std::make_shared<engine::Engine>(options));
      spdlog::info("serving {} with {} tokens of context", service.model_id(), service.engine()->status().max_context);
    } catch (...) {
      failure_ = std::current_exception();
    }
    ended_ = true;
    if (failure_) server.stop();
  }

  std::atomic<bool> ended_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

void serve_model(ServeOptions options) {
  check(options);
  serve::ApiKeys keys = read_keys(options);
  serve::require_key_beyond_loopback(options.server.host, keys);
  serve::Service service(options.service);
  serve::Router router;
  const serve::AccessGuard guard(std::move(keys), options.allowed_hosts);
  router.set_guard([&guard](const serve::HttpRequest& head, bool open) { return guard.check(head, open); });
  serve::add_endpoints(router, service);
  serve::HttpServer server(options.server, router);
  print_address(server, options.json);
  options.engine.load.quiet = options.json;
  options.engine.on_failure = [&server] { server.stop(); };
  Loader loader(options.engine, service, server);
  server.run();
  loader.finish();
  const std::string failure = service.engine()->status().failure;
  service.drop_engine();
  if (!failure.empty()) base::internal_error("engine", "{}", failure);
}

}  // namespace

void add_serve(CLI::App& app) {
  const auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Answer HTTP requests (docs/api.md)");
  add_model_options(*command, options->engine);
  const auto add = [&](const char* name, auto& value, const char* help) {
    return setting(command->add_option(name, value, help))->group(kNetwork);
  };
  add("--host", options->server.host, "The address to listen on; beyond this machine a key is needed")
      ->capture_default_str();
  add("--port", options->port, "The port to listen on; 0 takes a free one")->capture_default_str();
  add("--api-key-file", options->key_file, "A file of keys, one a line; TANDEM_API_KEY is one key more")
      ->type_name("FILE");
  add("--allow-host", options->allowed_hosts,
      "A name by which clients may call the server, beside localhost and IP addresses")
      ->type_name("NAME")
      ->expected(1)
      ->take_all()
      ->delimiter(',');
  add("--model-id", options->service.model_id, "The model's name in answers instead of its own")->type_name("NAME");
  setting(command->add_flag("--strict-model", options->service.strict_model, "Refuse requests that name another model"))
      ->group(kNetwork);
  setting(command->add_flag("--no-web-page", options->no_web_page, "Serve no page for people at / (docs/web.md)"))
      ->group(kNetwork);
  setting(command->add_flag("--strict-images", options->service.strict_images,
                            "Refuse pictures instead of telling the model that there was one"))
      ->group(kNetwork);
  add("--guards-off", options->guards_off,
      "Guards to switch off: empty-answer, open-thinking, repeat (docs/sampling.md)")
      ->type_name("NAME")
      ->expected(1)
      ->take_all()
      ->delimiter(',');
  add("--request-log", options->server.request_log.file, "A file that gets one JSON line a request, without any text")
      ->type_name("FILE");
  add("--request-log-mib", options->request_log_mib, "MiB of a request log before a new one begins; 4 are kept")
      ->capture_default_str();
  add("--max-request-mib", options->max_request_mib, "MiB of a request's body at most")->capture_default_str();
  add("--max-connections", options->server.limits.connections, "Connections at a time")->capture_default_str();
  per_call(command->add_flag("--json", options->json, "Print the address as one JSON object"));
  add_context_options(*command, options->engine);
  add_concurrency_options(*command, options->engine);
  command->footer(
      "Examples:\n"
      "  tandem serve demo-flash.tandem\n"
      "  TANDEM_API_KEY=secret tandem serve demo-flash.tandem --host 0.0.0.0 --port 8000");
  command->callback([options] { serve_model(*options); });
}

}  // namespace tandem::app
