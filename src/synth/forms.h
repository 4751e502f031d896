// The published forms that can be made, and the configs of the models at several sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "checkpoint/recognise.h"

namespace tandem::synth {

struct NamedForm {
  const char* name;     // "flash-nvfp4"
  const char* family;   // model_type: qwen4_exp or qwen3_5
  const char* meaning;  // one line, for help
  checkpoint::Form form;
};
std::span<const NamedForm> forms();
// Throws base::Error{kBadInput} that lists the names.
const NamedForm& form_named(std::string_view name);

enum class Scale : uint8_t {
  kTiny,   // some MiB: for tests and for looking at
  kSmall,  // about 1 GiB in BF16
  kFull,   // the published sizes: 360 GB of Flash-Next in BF16
};

// What differs from the scale's own.
struct Sizes {
  std::optional<int64_t> layers, experts, top_k, hidden, inner, vocab, ngram_rows;
};

// config.json of a model of the form's family, its quantisation told as the form's publisher does. `base` is a whole
// config.json to start from instead of the scale's, or null. Throws base::Error{kBadInput} for sizes that no model of
// the family can have.
base::Json make_config(const NamedForm& form, Scale scale, const Sizes& sizes, const base::Json& base);

// Ids of a synthetic vocabulary (tokenizer.h): of the first added token, <|endoftext|>.
int64_t first_added_token(int64_t vocab);

}  // namespace tandem::synth
