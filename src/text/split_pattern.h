// The pattern by which a pre-tokenizer cuts text into words, as tokenizer.json writes it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tandem::text {

// A compiled pattern. Immutable; split may be called from several threads.
class SplitPattern {
 public:
  // Throws base::Error{kBadInput} with `source` where the pattern does not compile.
  SplitPattern(std::string pattern, std::string source);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Cuts `text` (whole UTF-8 characters) into its matches and what lies between them, in order and without gaps: the
  // "Isolated" behaviour of a Split pre-tokenizer. `piece` gets views into `text`, none of them empty. Throws
  // base::Error{kBadInput} where a match needs more steps or memory than the limits allow.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  std::string source_;
};

}  // namespace tandem::text
