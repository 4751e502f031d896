// One answer's way through a grammar, token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "grammar/grammar.h"
#include "grammar/vocabulary.h"

namespace tandem::grammar {

// Not thread-safe, but matchers of one grammar may be used by different threads. A copy is cheap and independent: it
// is how to go back. End tokens are the caller's business: they are allowed where may_end().
class Matcher {
 public:
  Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary);

  // Bit i % 64 of word i / 64 tells whether token i may come next. REQUIRES: out.size() == vocabulary.mask_words().
  // Never empty unless must_end(), where the vocabulary has each single byte.
  void mask(std::span<uint64_t> out);
  bool allows(int32_t token) const;
  // False, and nothing changes, where the token is not allowed.
  bool accept(int32_t token);
  bool accept_bytes(std::string_view bytes);

  bool may_end() const { return may_end_; }    // the text so far is complete
  bool must_end() const { return must_end_; }  // complete, and nothing can follow

  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  void renew_cache();
  void enter(uint32_t state);

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::shared_ptr<StateCache> cache_;
  uint32_t state_ = 0;
  bool may_end_ = false;
  bool must_end_ = false;
};

}  // namespace tandem::grammar
