// What the endpoints share: the engine, once it is loaded, and the name it answers to.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/grammar_cache.h"
#include "serve/http/errors.h"
#include "serve/metrics.h"

namespace tandem::serve {

struct ServiceOptions {
  std::string model_id{};      // empty: the engine's name of the model
  bool strict_model = false;   // refuse requests that name another model
  bool strict_images = false;  // refuse pictures and films instead of telling the model that there was one
  bool web_page = true;        // serve the page for people (serve/web_page.h)
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
  // omit_media by this server's options, counted.
  void omit_media(std::vector<text::Message>& messages);
  // The grammar of such an answer (output_format.h), compiled or from the last ones that were; null where nothing is
  // forced.
  std::shared_ptr<const grammar::Grammar> grammar(const ToolRequest& tools, const OutputFormat& format);
  // May outlive this: answers that end later still count.
  const std::shared_ptr<Metrics>& metrics() const { return metrics_; }

 private:
  const ServiceOptions options_;
  const int64_t created_;
  mutable std::mutex mutex_;
  std::shared_ptr<engine::Engine> engine_;
  const std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>();
  GrammarCache grammars_;
};

}  // namespace tandem::serve
