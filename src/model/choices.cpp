#include "model/choices.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"

namespace tandem::model {

void Choices::make_room() {
  if (ids_.data() != nullptr) return;
  constexpr int64_t kRows = ops::kMostFewColumns;
  const int64_t bytes = kRows * base::ceil_div(vocab_, 64) * 8;
  ids_ = device::Buffer::shared(device_, kRows * 4);
  counts_ = device::Buffer::shared(device_, kRows * 4);
  best_ = device::Buffer::shared(device_, kRows * ops::Ops::kTopLogits * static_cast<int64_t>(sizeof(ops::TokenLogit)));
  allowed_ = device::Buffer(device_, bytes);
  if (!device_.is_host()) staging_ = device::Buffer::shared(device_, bytes);
}

void Choices::plan(const float* logits, int64_t rows) {
  ask_greedy(logits, rows, vocab_, {});
  ask_top_logits(logits, rows, vocab_, {});
}

void Choices::ask_greedy(const float* logits, int64_t rows, int64_t tokens, Allowed allowed) {
  tokens = std::min(tokens, vocab_);
  ops_.greedy({.logits = logits,
               .rows = rows,
               .vocab = vocab_,
               .tokens = tokens,
               .allowed = upload(tokens, allowed),
               .ids = ids_.as<int32_t>()});
}

void Choices::ask_top_logits(const float* logits, int64_t rows, int64_t tokens, Allowed allowed) {
  tokens = std::min(tokens, vocab_);
  ops_.top_logits({.logits = logits,
                   .rows = rows,
                   .vocab = vocab_,
                   .tokens = tokens,
                   .allowed = upload(tokens, allowed),
                   .best = best_.as<ops::TokenLogit>(),
                   .counts = counts_.as<int32_t>()});
}

std::vector<int32_t> Choices::greedy(int64_t rows) const {
  const auto* ids = ids_.as<int32_t>();
  return {ids, ids + rows};
}

std::vector<Model::TopLogits> Choices::top_logits(int64_t rows) const {
  const auto* best = best_.as<ops::TokenLogit>();
  const auto* counts = counts_.as<int32_t>();
  std::vector<Model::TopLogits> out;
  for (int64_t r = 0; r < rows; ++r) {
    const auto count = static_cast<size_t>(std::max(counts[r], 0));
    out.push_back({.finite = counts[r] >= 0, .best = {best + r * ops::Ops::kTopLogits, count}});
  }
  return out;
}

const uint32_t* Choices::upload(int64_t tokens, Allowed allowed) {
  if (std::all_of(allowed.begin(), allowed.end(), [](const auto& words) { return words.empty(); })) return nullptr;
  const int64_t words = base::ceil_div(tokens, 32);
  auto* at = (device_.is_host() ? allowed_ : staging_).as<uint32_t>();
  for (const std::span<const uint64_t> row : allowed) {
    const int64_t known = std::min(words, static_cast<int64_t>(row.size()) * 2);
    std::memcpy(at, row.data(), static_cast<size_t>(known * 4));
    std::fill(at + known, at + words, row.empty() ? ~uint32_t{0} : 0);
    at += words;
  }
  const auto rows = static_cast<int64_t>(allowed.size());
  if (!device_.is_host()) device_.upload(allowed_.data(), staging_.data(), rows * words * 4);
  return allowed_.as<uint32_t>();
}

}  // namespace tandem::model
