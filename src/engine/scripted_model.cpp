#include "engine/scripted_model.h"

#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"

namespace tandem::engine {

struct ScriptedModel::Shared {
  ScriptedOptions options;
  int created = 0;
  int alive = 0;
};

namespace {

class ScriptedSequence : public TextSequence {
 public:
  ScriptedSequence(const ScriptedOptions& options, int number, std::shared_ptr<int> alive)
      : options_(options), number_(number), alive_(std::move(alive)) {
    ++*alive_;
  }
  ~ScriptedSequence() override { --*alive_; }

  int64_t length() const override { return static_cast<int64_t>(consumed_.size()); }

  void forward(std::span<const int32_t> tokens, bool keeps_logits) override {
    if (tokens.empty()) base::internal_error("scripted model", "a forward without tokens");
    const int64_t begin = length();
    if (options_.step_time.count() > 0) std::this_thread::sleep_for(options_.step_time);
    consumed_.insert(consumed_.end(), tokens.begin(), tokens.end());
    if (keeps_logits) {
      if (!answer_) {
        prompt_length_ = consumed_.size();
        answer_ = options_.script(consumed_);
      }
      const size_t next = consumed_.size() - prompt_length_;
      const int32_t token = next < answer_->size() ? (*answer_)[next] : options_.end_token;
      logits_.assign(static_cast<size_t>(options_.vocab), 0.0f);
      logits_.at(static_cast<size_t>(token)) = 100.0f;
    }
    if (!options_.hook) return;
    options_.hook({.sequence = number_, .begin = begin, .tokens = tokens, .logits = keeps_logits ? &logits_ : nullptr});
  }

  std::span<const float> logits() override { return logits_; }

 private:
  const ScriptedOptions& options_;
  int number_;
  std::shared_ptr<int> alive_;
  std::vector<int32_t> consumed_;
  std::vector<float> logits_;
  size_t prompt_length_ = 0;
  std::optional<std::vector<int32_t>> answer_;
};

}  // namespace

ScriptedModel::ScriptedModel(ScriptedOptions options) : shared_(std::make_shared<Shared>()) {
  shared_->options = std::move(options);
}

ScriptedModel::~ScriptedModel() = default;

std::unique_ptr<TextSequence> ScriptedModel::create() {
  if (shared_->alive >= shared_->options.slots) {
    base::unavailable("scripted model", "all {} slots are taken", shared_->options.slots);
  }
  // Sequences share the model's lifetime through the counter's owner.
  return std::make_unique<ScriptedSequence>(shared_->options, shared_->created++,
                                            std::shared_ptr<int>(shared_, &shared_->alive));
}

int64_t ScriptedModel::capacity_tokens() const {
  return shared_->options.capacity_tokens;
}

int64_t ScriptedModel::vocab() const {
  return shared_->options.vocab;
}

std::optional<DeviceMemory> ScriptedModel::device_memory() const {
  if (!shared_->options.memory) return std::nullopt;
  return shared_->options.memory();
}

}  // namespace tandem::engine
