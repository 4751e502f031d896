// What the engine needs of a model: sequences that consume tokens and tell the logits of the next one. The loaded
// model stands behind it (loaded_model.h), and in tests a script.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/allowed.h"
#include "engine/candidates.h"

namespace tandem::engine {

// One sequence with its state. Used by one thread at a time.
class TextSequence {
 public:
  virtual ~TextSequence() = default;

  virtual int64_t length() const = 0;  // tokens consumed
  // Consumes at least one token. With `keeps_logits`, those that follow the last token stay where they were computed
  // until the next forward of any sequence; the call may return before they are there, and throw what is wrong with
  // them only in one of the four calls below, which wait. Throws base::Error; the sequence is then of no further use.
  virtual void forward(std::span<const int32_t> tokens, bool keeps_logits) = 0;

  // All of them, [vocab]; until the next forward.
  virtual std::span<const float> logits() = 0;
  // The likeliest allowed token of the first `tokens`, the lower id among equals. Absent where a logit is not finite or
  // no token is allowed, and where the model does not choose.
  virtual std::optional<int32_t> likeliest(const Allowed& allowed, int64_t tokens) {
    (void)allowed, (void)tokens;
    return std::nullopt;
  }
  // The best of them, until the next call; absent as above.
  virtual std::optional<Candidates> candidates(const Allowed& allowed, int64_t tokens) {
    (void)allowed, (void)tokens;
    return std::nullopt;
  }
  virtual void settle() {}

  // Says that these tokens come next, so that what they need from disk is on its way. Not required, and not binding.
  virtual void prefetch(std::span<const int32_t> tokens) { (void)tokens; }
};

// A card's memory as it is, and as it would be if nobody but this model took any since it was loaded.
struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t planned_free_bytes = 0;  // at least so much; negative where the plan was tight
};

// Used by one thread at a time; its sequences share the model and are not run at the same time.
class TextModel {
 public:
  virtual ~TextModel() = default;

  // A new empty sequence; throws base::Error{kUnavailable} where all its state slots are taken.
  virtual std::unique_ptr<TextSequence> create() = 0;
  // Tokens that all sequences together may hold, each rounded up to whole pages of 64.
  virtual int64_t capacity_tokens() const = 0;
  virtual int64_t vocab() const = 0;  // logits of a row; may be more than the tokenizer has tokens
  // Of the card that the model is on; absent on the processor.
  virtual std::optional<DeviceMemory> device_memory() const { return std::nullopt; }
};

}  // namespace tandem::engine
