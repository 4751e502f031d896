// A model that plays given token sequences, in place of weights: for measuring and testing what stands around a model.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/text_model.h"

namespace tandem::engine {

// The tokens that follow a prompt; after them the end token comes, for ever.
using Script = std::function<std::vector<int32_t>(std::span<const int32_t> prompt)>;

// One forward call, as a hook sees it.
struct ScriptedForward {
  int sequence = 0;  // counted from 0 in the order of creation
  int64_t begin = 0;
  std::span<const int32_t> tokens;
  std::vector<float>* logits = nullptr;  // filled already; null where none were asked for
};

struct ScriptedOptions {
  int64_t vocab = 0;
  int32_t end_token = 0;
  Script script;
  int64_t capacity_tokens = int64_t{1} << 20;
  int slots = 64;  // sequences at once
  std::chrono::microseconds step_time{0};
  // Called at the end of every forward, on the step thread; may wait, throw or change the logits.
  std::function<void(const ScriptedForward&)> hook;
  // Of a card that it pretends to be on, asked for on the step thread; none: the processor.
  std::function<DeviceMemory()> memory;
};

// The prompt of a sequence is what it has consumed when logits are first asked for. A scripted token has logit 100, all
// others 0, so that sampling at any usual temperature follows the script.
class ScriptedModel : public TextModel {
 public:
  explicit ScriptedModel(ScriptedOptions options);
  ~ScriptedModel() override;

  std::unique_ptr<TextSequence> create() override;
  int64_t capacity_tokens() const override;
  int64_t vocab() const override;
  std::optional<DeviceMemory> device_memory() const override;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace tandem::engine
