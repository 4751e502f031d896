// Chooses the next token from the logits of one request (docs/sampling.md).
//
// The order is: bias, penalties, what may be drawn at all, temperature, top-k, top-p, min-p, draw. Each filter works on
// the probabilities of what the one before left over, renormalised, and always leaves the most likely token.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/allowed.h"
#include "engine/candidates.h"
#include "engine/request.h"

namespace tandem::engine {

// Not thread-safe; one sampler an answer.
class Sampler {
 public:
  // Tokens from `tokens` on are never drawn: a model's vocabulary is padded beyond the tokenizer's. `sampling` must be
  // in range (sampling_defaults.h); its seed must be set unless the temperature is 0.
  Sampler(Sampling sampling, int64_t tokens);

  // The token for position `position` of the answer. The draw depends on the logits, the tokens accepted so far (where
  // there are penalties), what is allowed, seed and position, and on no earlier draw. Throws base::Error{kInternal}
  // where a logit of a token of the vocabulary is not finite, or where no token is allowed.
  int32_t draw(std::span<const float> logits, int64_t position, const Allowed& allowed = {});
  // The same token from the best candidates alone; absent where they do not tell it. REQUIRES: takes_candidates(), and
  // logits that are finite.
  std::optional<int32_t> draw_from(const Candidates& given, int64_t position);
  // Whether draw() gives the likeliest allowed token of the logits as they are.
  bool takes_likeliest() const;
  // Whether the best candidates may tell it.
  bool takes_candidates() const { return takes_candidates_; }
  // The prompt, for the repetition penalty.
  void accept_prompt(std::span<const int32_t> prompt);
  // Counts a token of the answer for the penalties.
  void accept(int32_t token);

 private:
  using Candidate = ops::TokenLogit;
  static bool better(const Candidate& a, const Candidate& b);

  bool takes_only_likeliest() const { return sampling_.temperature == 0 || sampling_.top_k == 1; }
  bool never_raises() const;
  float repeated(float logit) const;
  float penalty(int64_t count) const;
  float adjusted(const Candidate& candidate) const;
  double uniform(int64_t position) const;  // in [0, 1), of the seed and the position

  std::span<const float> adjusted(std::span<const float> logits, const Allowed& allowed);
  void penalise();
  void forbid(const Allowed& allowed);
  void check(std::span<const float> logits, int64_t position) const;
  int32_t draw_from_all(std::span<const float> logits, double u);
  int32_t draw_from_best(std::span<const float> logits, double u);
  void select_best(std::span<const float> logits, size_t count);
  size_t select_certain(const Candidates& given, size_t wanted);
  int32_t pick(size_t kept, double u) const;
  double weight(const Candidate& candidate) const;
  void sort_best(size_t count);
  size_t filter(size_t kept);
  size_t nucleus(size_t kept, double mass);

  Sampling sampling_;
  int64_t tokens_;
  bool takes_candidates_ = false;
  std::unordered_map<int32_t, int64_t> counts_;  // tokens of the answer
  std::unordered_set<int32_t> seen_;             // of the prompt and the answer, for the repetition penalty
  std::vector<float> adjusted_;
  std::vector<double> weights_;  // of all tokens, where nothing is filtered
  std::vector<Candidate> candidates_;
  size_t sorted_ = 0;  // candidates_[0, sorted_) are the best ones, in order
};

}  // namespace tandem::engine
