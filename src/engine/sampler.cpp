#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/philox.h"

namespace tandem::engine {
namespace {

// Up to this many, a heap of the wanted candidates is cheaper than selecting and sorting them.
constexpr size_t kHeapLimit = 1024;

// Logits are looked at in blocks of a fixed size, which the compiler turns into vector instructions. Lanes are folded
// one by one at the end of a block.
constexpr size_t kLanes = 16;
constexpr size_t kBlock = 8 * kLanes;

int32_t argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

// Of numbers that are finite or minus infinity.
float largest_of_block(const float* logits) {
  std::array<float, kLanes> lanes;
  std::copy_n(logits, kLanes, lanes.begin());
  for (size_t i = kLanes; i < kBlock; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
    }
  }
  return *std::max_element(lanes.begin(), lanes.end());
}

bool is_finite(std::span<const float> logits) {
  constexpr uint32_t kExponent = 0x7f800000;
  std::array<uint32_t, kLanes> others = {};  // not zero where all bits of an exponent are set
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      others[lane] |= (std::bit_cast<uint32_t>(logits[i + lane]) & kExponent) == kExponent ? 1 : 0;
    }
  }
  for (; i < logits.size(); ++i) others[0] |= std::isfinite(logits[i]) ? 0 : 1;
  return std::all_of(others.begin(), others.end(), [](uint32_t other) { return other == 0; });
}

}  // namespace

Sampler::Sampler(Sampling sampling, int64_t tokens) : sampling_(std::move(sampling)), tokens_(tokens) {
  const bool few = takes_only_likeliest() || (sampling_.top_k > 0 && sampling_.top_k <= ops::Ops::kTopLogits);
  takes_candidates_ = (few || (sampling_.top_p >= 1 && sampling_.min_p > 0)) && never_raises();
}

// Whether bias and penalties leave every logit at most what it is.
bool Sampler::never_raises() const {
  return sampling_.presence_penalty >= 0 && sampling_.frequency_penalty >= 0 && sampling_.repetition_penalty >= 1 &&
         std::all_of(sampling_.logit_bias.begin(), sampling_.logit_bias.end(),
                     [](const LogitBias& bias) { return bias.bias <= 0; });
}

bool Sampler::better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

void Sampler::accept(int32_t token) {
  if (sampling_.presence_penalty != 0 || sampling_.frequency_penalty != 0) ++counts_[token];
  if (sampling_.repetition_penalty != 1) seen_.insert(token);
}

void Sampler::accept_prompt(std::span<const int32_t> prompt) {
  if (sampling_.repetition_penalty != 1) seen_.insert(prompt.begin(), prompt.end());
}

void Sampler::check(std::span<const float> logits, int64_t position) const {
  if (logits.empty()) base::internal_error("sampler", "the model gave no logits for token {} of the answer", position);
  if (is_finite(logits)) return;
  const auto bad = std::count_if(logits.begin(), logits.end(), [](float logit) { return !std::isfinite(logit); });
  base::internal_error("sampler", "{} of {} logits for token {} of the answer are not finite", bad, logits.size(),
                       position);
}

// The logits with bias, penalties and prohibitions, or as they are where there is none of these.
std::span<const float> Sampler::adjusted(std::span<const float> logits, const Allowed& allowed) {
  const bool forbids = !allowed.mask.empty() || !allowed.banned.empty();
  if (counts_.empty() && seen_.empty() && sampling_.logit_bias.empty() && !forbids) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const LogitBias& bias : sampling_.logit_bias) {
    if (static_cast<size_t>(bias.token) < adjusted_.size()) adjusted_[static_cast<size_t>(bias.token)] += bias.bias;
  }
  penalise();
  if (forbids) forbid(allowed);
  return adjusted_;
}

void Sampler::penalise() {
  for (const int32_t id : seen_) {
    if (static_cast<size_t>(id) >= adjusted_.size()) continue;
    adjusted_[static_cast<size_t>(id)] = repeated(adjusted_[static_cast<size_t>(id)]);
  }
  for (const auto& [id, count] : counts_) {
    if (id < 0 || static_cast<size_t>(id) >= adjusted_.size()) continue;
    adjusted_[static_cast<size_t>(id)] -= penalty(count);
  }
}

// With the repetition penalty.
float Sampler::repeated(float logit) const {
  const double penalty = sampling_.repetition_penalty;
  return static_cast<float>(logit > 0 ? logit / penalty : logit * penalty);
}

// Of a token that occurred `count` times in the answer.
float Sampler::penalty(int64_t count) const {
  return static_cast<float>(sampling_.presence_penalty + sampling_.frequency_penalty * static_cast<double>(count));
}

// One logit with bias and penalties, to the bit what they make of it among all.
float Sampler::adjusted(const Candidate& candidate) const {
  float logit = candidate.logit;
  for (const LogitBias& bias : sampling_.logit_bias) {
    if (bias.token == candidate.id) logit += bias.bias;
  }
  if (seen_.contains(candidate.id)) logit = repeated(logit);
  if (const auto found = counts_.find(candidate.id); found != counts_.end()) logit -= penalty(found->second);
  return logit;
}

// A forbidden token's logit is minus infinity: it has no weight, and every filter sees only what is allowed.
void Sampler::forbid(const Allowed& allowed) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  if (!allowed.mask.empty()) {
    for (size_t word = 0; word * 64 < adjusted_.size(); ++word) {
      uint64_t forbidden = word < allowed.mask.size() ? ~allowed.mask[word] : ~uint64_t{0};
      const size_t tokens = std::min<size_t>(64, adjusted_.size() - word * 64);
      if (tokens < 64) forbidden &= (uint64_t{1} << tokens) - 1;
      for (; forbidden != 0; forbidden &= forbidden - 1) {
        adjusted_[word * 64 + static_cast<size_t>(std::countr_zero(forbidden))] = kNever;
      }
    }
  }
  for (const int32_t id : allowed.banned) {
    if (static_cast<size_t>(id) < adjusted_.size()) adjusted_[static_cast<size_t>(id)] = kNever;
  }
  const bool any = std::any_of(adjusted_.begin(), adjusted_.end(), [](float logit) { return logit != kNever; });
  if (!any) base::internal_error("sampler", "the grammar allows no token of the vocabulary here");
}

bool Sampler::takes_likeliest() const {
  const bool penalties =
      sampling_.presence_penalty != 0 || sampling_.frequency_penalty != 0 || sampling_.repetition_penalty != 1;
  return takes_only_likeliest() && !penalties && sampling_.logit_bias.empty();
}

double Sampler::uniform(int64_t position) const {
  if (!sampling_.seed) base::internal_error("sampler", "token {} of the answer is drawn without a seed", position);
  return uniform_draw(*sampling_.seed, static_cast<uint64_t>(position));
}

int32_t Sampler::draw(std::span<const float> logits, int64_t position, const Allowed& allowed) {
  logits = logits.first(std::min(logits.size(), static_cast<size_t>(std::max<int64_t>(tokens_, 0))));
  check(logits, position);
  logits = adjusted(logits, allowed);
  if (takes_only_likeliest()) return argmax(logits);
  const double u = uniform(position);
  const bool all = sampling_.top_k == 0 && sampling_.top_p >= 1 && sampling_.min_p <= 0;
  return all ? draw_from_all(logits, u) : draw_from_best(logits, u);
}

std::optional<int32_t> Sampler::draw_from(const Candidates& given, int64_t position) {
  const bool limited = sampling_.top_k > 0 && sampling_.top_k < given.tokens;
  const size_t wanted = takes_only_likeliest() ? 1 : static_cast<size_t>(limited ? sampling_.top_k : given.tokens);
  const size_t certain = select_certain(given, wanted);
  if (certain == 0 || !std::isfinite(candidates_[0].logit)) return std::nullopt;
  if (takes_only_likeliest()) return candidates_[0].id;
  const bool all_of_top_k = limited && (certain == wanted || given.complete());
  // top-p needs the weights of all that top-k leaves; min-p goes from the best down, to the first that is too light.
  if (!all_of_top_k && (sampling_.top_p < 1 || sampling_.min_p <= 0)) return std::nullopt;
  const size_t kept = filter(certain);
  if (!all_of_top_k && kept == certain && !given.complete()) return std::nullopt;
  return pick(kept, uniform(position));
}

// Fills candidates_ with the best of those given, at most `wanted`, in order, with bias and penalties. Says how many of
// them are the best of all: nothing raises a logit, so those that are as good as the last one given was.
size_t Sampler::select_certain(const Candidates& given, size_t wanted) {
  candidates_.clear();
  for (const Candidate& next : given.best) {
    if (candidates_.size() == wanted && !better(next, candidates_.back())) break;
    const Candidate mine{adjusted(next), next.id};
    candidates_.insert(std::upper_bound(candidates_.begin(), candidates_.end(), mine, better), mine);
    if (candidates_.size() > wanted) candidates_.pop_back();
  }
  sorted_ = candidates_.size();
  if (given.complete() || given.best.empty()) return sorted_;
  const Candidate& last = given.best.back();
  const auto uncertain = std::find_if(candidates_.begin(), candidates_.end(),
                                      [&](const Candidate& candidate) { return better(last, candidate); });
  return static_cast<size_t>(uncertain - candidates_.begin());
}

// Nothing is filtered: the inverse of the cumulative distribution in the order of ids, without sorting.
int32_t Sampler::draw_from_all(std::span<const float> logits, double u) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  weights_.resize(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(logits[i]) - peak) / sampling_.temperature);
    total += weights_[i];
  }
  double rest = u * total;
  int32_t last = 0;  // the last token with any weight, should rounding leave a rest
  for (size_t i = 0; i < logits.size(); ++i) {
    const double w = weights_[i];
    if (w <= 0) continue;
    last = static_cast<int32_t>(i);
    if (rest < w) return last;
    rest -= w;
  }
  return last;
}

// The probability relative to the best candidate's. REQUIRES: the best is in its place.
double Sampler::weight(const Candidate& candidate) const {
  const double peak = candidates_[0].logit;
  return std::exp((static_cast<double>(candidate.logit) - peak) / sampling_.temperature);
}

// Puts the best `count` candidates in order at the front.
void Sampler::sort_best(size_t count) {
  if (count <= sorted_) return;
  const auto first = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted_);
  const auto middle = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
  if (count - sorted_ > kHeapLimit && middle != candidates_.end()) {
    std::nth_element(first, middle, candidates_.end(), better);
    std::sort(first, middle, better);
  } else {
    std::partial_sort(first, middle, candidates_.end(), better);
  }
  sorted_ = count;
}

// How many of the best `kept` candidates hold `mass` of weight together; sorts no more of them than that takes.
size_t Sampler::nucleus(size_t kept, double mass) {
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    if (i == sorted_) sort_best(std::min(kept, sorted_ * 8));
    sum += weight(candidates_[i]);
    if (sum >= mass) return i + 1;
  }
  return kept;
}

// Fills candidates_ with the best `count` in order, in one pass that keeps a heap of them.
void Sampler::select_best(std::span<const float> logits, size_t count) {
  candidates_.clear();
  // Ids ascend, so an equal logit is no better than what is kept.
  const auto belongs = [&](float logit) { return candidates_.size() < count || logit > candidates_.front().logit; };
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const float> block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    if (block.size() == kBlock && !belongs(largest_of_block(block.data()))) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      if (!belongs(block[i])) continue;
      if (candidates_.size() == count) {
        std::pop_heap(candidates_.begin(), candidates_.end(), better);
        candidates_.pop_back();
      }
      candidates_.push_back({block[i], static_cast<int32_t>(begin + i)});
      std::push_heap(candidates_.begin(), candidates_.end(), better);
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), better);
  sorted_ = candidates_.size();
}

// How many of the best `kept` candidates top-p and min-p leave.
size_t Sampler::filter(size_t kept) {
  if (sampling_.top_p < 1) {
    double total = 0;
    for (size_t i = 0; i < kept; ++i) total += weight(candidates_[i]);
    kept = nucleus(kept, sampling_.top_p * total);
  }
  if (sampling_.min_p <= 0) return kept;
  // The peak's weight is 1, so a weight is the probability relative to the best.
  for (size_t i = 1; i < kept; ++i) {
    if (i == sorted_) sort_best(std::min(kept, sorted_ * 8));
    if (weight(candidates_[i]) < sampling_.min_p) return i;
  }
  return kept;
}

int32_t Sampler::draw_from_best(std::span<const float> logits, double u) {
  const bool limited = sampling_.top_k > 0 && static_cast<uint64_t>(sampling_.top_k) < logits.size();
  size_t kept = limited ? static_cast<size_t>(sampling_.top_k) : logits.size();
  if (limited && kept <= kHeapLimit) {
    select_best(logits, kept);
  } else {
    candidates_.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {logits[i], static_cast<int32_t>(i)};
    sorted_ = 0;
    sort_best(limited ? kept : std::min<size_t>(kept, 64));
  }
  return pick(filter(kept), u);
}

// One of the best `kept` candidates, in proportion to their weights.
int32_t Sampler::pick(size_t kept, double u) const {
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += weight(candidates_[i]);
  double rest = u * total;
  for (size_t i = 0; i < kept; ++i) {
    const double w = weight(candidates_[i]);
    if (rest < w) return candidates_[i].id;
    rest -= w;
  }
  return candidates_[0].id;  // rounding left a rest
}

}  // namespace tandem::engine
