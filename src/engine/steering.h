// What steers an answer beside the model's own choice: a grammar, a budget of reasoning, a least length, and the guards
// against answers that say nothing or never end (docs/sampling.md, "Guards").
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/allowed.h"
#include "engine/request.h"
#include "grammar/matcher.h"
#include "text/tokenizer.h"

namespace tandem::engine {

// So many equal tokens in a row are an answer that will not end by itself.
inline constexpr int64_t kMostRepeats = 256;

// Not thread-safe; one an answer.
class Steering {
 public:
  struct Options {
    std::shared_ptr<const grammar::Grammar> grammar{};
    std::shared_ptr<const grammar::Vocabulary> vocabulary{};  // where there is a grammar
    std::optional<int64_t> max_reasoning_tokens{};
    int64_t min_tokens = 0;
    std::vector<int32_t> end_tokens{};  // ascending; empty where nothing but max_tokens ends the answer
    Guards guards{};
    bool starts_in_reasoning = false;
  };
  // The tokenizer must outlive this.
  Steering(Options options, const text::Tokenizer& tokenizer);

  // Gives the token for a position of the answer.
  using Draw = std::function<int32_t(int64_t position, const Allowed& allowed)>;
  // The next token of the answer, drawn or forced; absent: the answer ends here. Throws what `draw` throws.
  std::optional<int32_t> next(const Draw& draw);
  // To be called with each token that next() gave: whether the answer was in its reasoning before and after it.
  void accept(int32_t token, bool reasoning_before, bool reasoning_after);

  // The last tokens are one token again and again.
  bool repeats() const { return options_.guards.repeat && repeats_ >= kMostRepeats; }
  const GuardCounts& counts() const { return counts_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  bool is_end(int32_t token) const;
  Allowed allowed();
  void close_reasoning();
  int32_t take_forced();

  Options options_;
  const text::Tokenizer& tokenizer_;
  std::optional<grammar::Matcher> matcher_;  // from the end of the reasoning on
  std::vector<uint64_t> mask_;
  std::deque<int32_t> forced_;
  bool in_reasoning_ = false;
  bool closed_ = false;  // the reasoning was closed by force
  bool said_ = false;    // something but blanks came after the reasoning
  int32_t last_ = -1;
  int64_t repeats_ = 0;
  int64_t tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  GuardCounts counts_;
};

}  // namespace tandem::engine
