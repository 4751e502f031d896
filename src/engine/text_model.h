// What the engine needs of a model: sequences that consume tokens and tell the logits of the next one. The loaded
// model stands behind it (loaded_model.h), and in tests a script.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tandem::engine {

// One sequence with its state. Used by one thread at a time.
class TextSequence {
 public:
  virtual ~TextSequence() = default;

  virtual int64_t length() const = 0;  // tokens consumed
  // Consumes at least one token. Where `logits` is not null it receives those that follow the last token, [vocab].
  // Throws base::Error; the sequence is then of no further use.
  virtual void forward(std::span<const int32_t> tokens, std::vector<float>* logits) = 0;
  // Says that these tokens come next, so that what they need from disk is on its way. Not required, and not binding.
  virtual void prefetch(std::span<const int32_t> tokens) { (void)tokens; }
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
};

}  // namespace tandem::engine
