// What the endpoints share: the engine, once it is loaded, and the name it answers to.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "serve/errors.h"

namespace tandem::serve {

struct ServiceOptions {
  std::string model_id;       // empty: the engine's name of the model
  bool strict_model = false;  // refuse requests that name another model
  bool web_page = true;       // serve the page for people (serve/web_page.h)
};

// Thread-safe.
class Service {
 public:
  explicit Service(ServiceOptions options);

  // From now on requests are served.
  void set_engine(std::shared_ptr<engine::Engine> engine);
  // No request reaches the engine after this; those in progress keep it alive until they end.
  void drop_engine();
  bool ready() const;

  // Throws base::Error{kUnavailable} while the model is loading.
  std::shared_ptr<engine::Engine> engine() const;
  std::string model_id() const;
  bool has_web_page() const { return options_.web_page; }
  int64_t created() const { return created_; }  // seconds since 1970
  // 404 where the request names a model that is not served.
  std::optional<ApiError> check_model(const std::string& asked) const;

 private:
  const ServiceOptions options_;
  const int64_t created_;
  mutable std::mutex mutex_;
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace tandem::serve
