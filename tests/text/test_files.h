// The demo model's text files, read once a test program.
#pragma once

#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace tandem::text {

inline std::string source_text(const std::string& path) {
  return base::read_text(std::filesystem::path(TANDEM_SOURCE_DIR) / path, 64 << 20);
}

inline base::Json source_json(const std::string& path) {
  return base::parse_json(source_text(path), path);
}

inline const Tokenizer& demo_tokenizer() {
  static const Tokenizer kTokenizer =
      Tokenizer::from_json(source_text("models/demo-flash/tokenizer.json"), "tokenizer.json");
  return kTokenizer;
}

}  // namespace tandem::text
