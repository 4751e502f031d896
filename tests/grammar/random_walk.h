// Answers that are drawn from masks alone.
#pragma once

#include <bit>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/grammar/support.h"

namespace tandem::grammar {

inline int32_t random_token(const std::vector<uint64_t>& mask, std::mt19937& random) {
  std::vector<int32_t> allowed;
  for (size_t i = 0; i < mask.size(); ++i) {
    for (uint64_t rest = mask[i]; rest != 0; rest &= rest - 1) {
      allowed.push_back(static_cast<int32_t>(i * 64 + static_cast<size_t>(std::countr_zero(rest))));
    }
  }
  return allowed.empty() ? -1 : allowed[random() % allowed.size()];
}

// A complete answer, or nothing where none came about within the steps. `endings` are tried now and then, so that texts
// of any length end.
inline std::optional<std::string> random_answer(const std::shared_ptr<const Grammar>& grammar, std::mt19937& random,
                                                const std::vector<std::string>& endings, int steps = 400) {
  Matcher matcher(grammar, demo_vocabulary());
  std::string text;
  for (int step = 0; step < steps; ++step) {
    if (matcher.must_end() || (matcher.may_end() && random() % 3 == 0)) return text;
    if (random() % 2 == 0) {
      const std::string& ending = endings[random() % endings.size()];
      if (matcher.accept_bytes(ending)) {
        text += ending;
        continue;
      }
    }
    const int32_t token = random_token(mask_of(matcher), random);
    if (token < 0 || !matcher.accept(token)) return "stuck after: " + text;
    text += matcher.vocabulary().bytes(token);
  }
  return std::nullopt;
}

}  // namespace tandem::grammar
