#include "serve/service.h"

#include <chrono>
#include <fmt/format.h>
#include <utility>

#include "serve/media.h"

namespace tandem::serve {

namespace {

constexpr size_t kShownName = 100;

int64_t now_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace

Service::Service(ServiceOptions options) : options_(std::move(options)), created_(now_seconds()) {}

void Service::set_engine(std::shared_ptr<engine::Engine> engine) {
  const std::lock_guard lock(mutex_);
  engine_ = std::move(engine);
}

void Service::drop_engine() {
  std::shared_ptr<engine::Engine> dropped;  // its destructor waits for the step thread: not under the lock
  const std::lock_guard lock(mutex_);
  dropped = std::exchange(engine_, nullptr);
}

bool Service::ready() const {
  const std::lock_guard lock(mutex_);
  return engine_ != nullptr;
}

std::shared_ptr<engine::Engine> Service::engine() const {
  const std::lock_guard lock(mutex_);
  if (!engine_) base::unavailable("", "the model is loading");
  return engine_;
}

std::string Service::model_id() const {
  return options_.model_id.empty() ? engine()->model_name() : options_.model_id;
}

std::optional<ApiError> Service::check_model(const std::string& asked) const {
  if (!options_.strict_model || asked == model_id()) return std::nullopt;
  ApiError error =
      http_error(404, fmt::format("the model {} is not served here, {} is", asked.substr(0, kShownName), model_id()),
                 "model_not_found");
  error.param = "model";
  return error;
}

void Service::omit_media(std::vector<text::Message>& messages) {
  metrics_->omitted_media(serve::omit_media(messages, options_.strict_images));
}

std::shared_ptr<const grammar::Grammar> Service::grammar(const ToolRequest& tools, const OutputFormat& format) {
  return grammars_.get(tools, format);
}

}  // namespace tandem::serve
