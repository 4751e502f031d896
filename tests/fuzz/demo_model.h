// What fuzzers of requests need of a model: the demo's tokenizer and template.
#pragma once

#include <filesystem>

#include "base/file.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::fuzz {

inline std::string demo_file(const char* name) {
  return base::read_text(std::filesystem::path(TANDEM_SOURCE_DIR) / "models/demo-flash" / name, 64 << 20);
}

inline const text::Tokenizer& demo_tokenizer() {
  static const text::Tokenizer kTokenizer = text::Tokenizer::from_json(demo_file("tokenizer.json"), "tokenizer.json");
  return kTokenizer;
}

inline const text::ChatTemplate& demo_template() {
  static const text::ChatTemplate kTemplate =
      text::ChatTemplate::from_jinja(demo_file("chat_template.jinja"), "chat_template.jinja");
  return kTemplate;
}

// A property that must hold whatever the input.
inline void require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace tandem::fuzz
