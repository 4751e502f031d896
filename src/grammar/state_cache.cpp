#include "grammar/state_cache.h"

#include <algorithm>
#include <bit>

namespace tandem::grammar {

namespace {

// Ways of reading one text beyond this number are given up: grammars so ambiguous allow less than they could.
constexpr size_t kMaxReadings = 4096;
// New states that one mask may need. Beyond them only tokens of one byte are looked at, so that an answer can always
// go on; grammars that are not ambiguous stay far below.
constexpr size_t kMaxNewStates = 8192;
constexpr uint64_t kMaxReadingsFollowed = 2'000'000;
constexpr size_t kRowBytes = 256 * sizeof(StateId);
constexpr size_t kFewTokens = 256;

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

}  // namespace

size_t StateCache::ReadingHash::operator()(const Reading& reading) const {
  const uint64_t head = mix(reading.node, (uint64_t{reading.counter.need} << 32) | reading.counter.left);
  return static_cast<size_t>(mix(head, reading.calls));
}

StateCache::StateCache(const Automaton& automaton, std::shared_ptr<const Vocabulary> vocabulary)
    : automaton_(automaton), vocabulary_(std::move(vocabulary)) {
  frames_.emplace_back();
  states_.emplace_back().row = kNoRow;  // kDead
  const Rule& root = automaton.rule(automaton.root());
  begin_set();
  add({root.start, root.counter, 0});
  start_ = intern_set();
}

// Within one token a counter can't change by more than the token has bytes, so what lies beyond makes no difference to
// a mask.
Counter StateCache::shorten(Counter counter) const {
  const auto longest = static_cast<uint32_t>(vocabulary_->longest());
  return {std::min(counter.need, longest + 1), counter.left > longest + 1 ? kNoLimit : counter.left};
}

StateCache::FrameId StateCache::frame(const Reading& back, uint32_t depth) {
  const auto known = frame_ids_.find(back);
  if (known != frame_ids_.end()) return known->second;
  const auto id = static_cast<FrameId>(frames_.size());
  frames_.push_back({back, depth, id});
  frame_ids_.emplace(back, id);
  bytes_ += sizeof(Frame) + sizeof(Reading) + 48;
  const Reading shorter = {back.node, shorten(back.counter), frames_[back.calls].shortened};
  if (shorter != back) {
    const FrameId shortened = frame(shorter, depth);  // once: the shorter one is its own
    frames_[id].shortened = shortened;
  }
  return id;
}

void StateCache::begin_set() {
  set_.clear();
  seen_readings_.clear();
  seen_.assign(64, 0);
  set_may_end_ = false;
}

// Adds a reading and all that it leads to without a byte.
void StateCache::add(const Reading& first) {
  pending_.push_back(first);
  while (!pending_.empty()) {
    const Reading reading = pending_.back();
    pending_.pop_back();
    ++work_;
    if (seen_readings_.size() >= kMaxReadings) continue;
    const Node& node = automaton_.node(reading.node);
    const uint32_t depth = frames_[reading.calls].depth;
    if (depth + node.height > automaton_.max_depth()) continue;

    size_t slot = ReadingHash()(reading) & (seen_.size() - 1);
    while (seen_[slot] != 0 && !(seen_readings_[seen_[slot] - 1] == reading)) slot = (slot + 1) & (seen_.size() - 1);
    if (seen_[slot] != 0) continue;
    seen_readings_.push_back(reading);
    seen_[slot] = static_cast<uint32_t>(seen_readings_.size());
    if (seen_readings_.size() * 2 > seen_.size()) {
      seen_.assign(seen_.size() * 2, 0);
      for (size_t i = 0; i < seen_readings_.size(); ++i) {
        size_t at = ReadingHash()(seen_readings_[i]) & (seen_.size() - 1);
        while (seen_[at] != 0) at = (at + 1) & (seen_.size() - 1);
        seen_[at] = static_cast<uint32_t>(i + 1);
      }
    }

    if (node.consumes) set_.push_back(reading);
    if (node.ends) {
      if (reading.calls == 0) {
        set_may_end_ = true;
      } else {
        pending_.push_back(frames_[reading.calls].back);
      }
    }
    for (const Edge& edge : automaton_.edges(reading.node)) {
      switch (edge.kind) {
        case Edge::Kind::kBytes:
          break;
        case Edge::Kind::kSkip:
          pending_.push_back({edge.target, reading.counter, reading.calls});
          break;
        case Edge::Kind::kCount:
          if (reading.counter.left != 0) {
            const Counter counter = reading.counter;
            pending_.push_back({edge.target,
                                {counter.need - (counter.need != 0), counter.left - (counter.left != kNoLimit)},
                                reading.calls});
          }
          break;
        case Edge::Kind::kDone:
          if (reading.counter.need == 0) pending_.push_back({edge.target, reading.counter, reading.calls});
          break;
        case Edge::Kind::kCall: {
          const Rule& rule = automaton_.rule(edge.rule);
          // Where the callers can't be completed within the limit of nesting, neither can the call.
          const uint32_t inner = edge.last ? depth : depth + node.weight;
          if (inner + automaton_.node(rule.start).height > automaton_.max_depth() ||
              depth + automaton_.node(edge.target).height > automaton_.max_depth()) {
            break;
          }
          const FrameId calls = edge.last ? reading.calls : frame({edge.target, reading.counter, reading.calls}, inner);
          pending_.push_back({rule.start, rule.counter, calls});
          break;
        }
      }
    }
  }
}

StateId StateCache::intern_set() {
  if (set_.empty() && !set_may_end_) return kDead;
  uint64_t hash = set_may_end_ ? 1 : 0;
  for (const Reading& reading : set_) hash = mix(hash, ReadingHash()(reading));
  const auto [begin, end] = state_ids_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    const State& state = states_[at->second];
    if (state.may_end == set_may_end_ && state.end - state.first == set_.size() &&
        std::equal(set_.begin(), set_.end(), readings_.begin() + state.first)) {
      return at->second;
    }
  }
  const auto id = static_cast<StateId>(states_.size());
  const auto first = static_cast<uint32_t>(readings_.size());
  readings_.insert(readings_.end(), set_.begin(), set_.end());
  states_.push_back({first, static_cast<uint32_t>(readings_.size()), kNoRow, set_may_end_, kUnknown});
  state_ids_.emplace(hash, id);
  bytes_ += sizeof(State) + 48 + set_.size() * sizeof(Reading);
  return id;
}

uint32_t StateCache::row_of(StateId state) {
  if (states_[state].row == kNoRow) {
    states_[state].row = static_cast<uint32_t>(rows_.size());
    rows_.push_back(std::make_unique_for_overwrite<StateId[]>(256));
    std::fill_n(rows_.back().get(), 256, kUnknown);
    bytes_ += kRowBytes + sizeof(void*);
  }
  return states_[state].row;
}

StateId StateCache::step_byte(StateId state, uint8_t byte) {
  const uint32_t row = row_of(state);
  if (rows_[row][byte] != kUnknown) return rows_[row][byte];
  begin_set();
  work_ += states_[state].end - states_[state].first;
  for (uint32_t i = states_[state].first; i < states_[state].end; ++i) {
    const Reading reading = readings_[i];
    for (const Edge& edge : automaton_.edges(reading.node)) {
      if (edge.kind == Edge::Kind::kBytes && edge.low <= byte && byte <= edge.high) {
        add({edge.target, reading.counter, reading.calls});
      }
    }
  }
  const StateId next = intern_set();
  rows_[row][byte] = next;
  return next;
}

StateId StateCache::shortened(StateId state) {
  if (states_[state].shortened != kUnknown) return states_[state].shortened;
  // Two readings may become one.
  set_.clear();
  for (uint32_t i = states_[state].first; i < states_[state].end; ++i) {
    const Reading& reading = readings_[i];
    const Reading shorter = {reading.node, shorten(reading.counter), frames_[reading.calls].shortened};
    if (std::find(set_.begin(), set_.end(), shorter) == set_.end()) set_.push_back(shorter);
  }
  set_may_end_ = states_[state].may_end;
  const StateId result = intern_set();
  states_[state].shortened = result;
  states_[result].shortened = result;
  return result;
}

// Sets the bits of the tokens that may come after `from`.
void StateCache::walk(const TokenTrie& trie, StateId from, std::vector<uint64_t>& words) {
  const size_t most_states = states_.size() + kMaxNewStates;
  const uint64_t most_work = work_ + kMaxReadingsFollowed;
  std::vector<StateId> path(vocabulary_->longest() + 1, kDead);  // by depth
  path[0] = from;
  const size_t count = trie.nodes.size() - 1;
  for (size_t i = 0; i < count;) {
    const TokenTrie::Node& node = trie.nodes[i];
    const StateId before = path[node.depth - 1u];
    const uint32_t row = states_[before].row;
    StateId next = row == kNoRow ? kUnknown : rows_[row][node.byte];
    if (next == kUnknown) {
      if (node.depth > 1 && (states_.size() >= most_states || work_ >= most_work)) {
        i = node.after;
        continue;
      }
      next = step_byte(before, node.byte);
    }
    if (next == kDead) {
      i = node.after;
      continue;
    }
    path[node.depth] = next;
    for (uint32_t t = node.first_token; t < trie.nodes[i + 1].first_token; ++t) {
      const auto token = static_cast<size_t>(trie.tokens[t]);
      words[token / 64] |= uint64_t{1} << (token % 64);
    }
    ++i;
  }
}

const StateCache::Mask& StateCache::mask_of(StateId state) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  std::vector<uint64_t> words(vocabulary_->mask_words(), 0);
  bool any_text = false;
  for (uint32_t i = states_[state].first; i < states_[state].end; ++i) {
    const TextLoop text = automaton_.node(readings_[i].node).text;
    any_text |= text == TextLoop::kFree || (text == TextLoop::kCounted && readings_[i].counter.left == kNoLimit);
  }
  if (any_text) std::copy(vocabulary_->printable().begin(), vocabulary_->printable().end(), words.begin());
  walk(any_text ? vocabulary_->unprintable() : vocabulary_->trie(), state, words);

  size_t allowed = 0;
  for (const uint64_t word : words) allowed += static_cast<size_t>(std::popcount(word));
  Mask& mask = masks_[state];
  if (allowed <= kFewTokens) {
    for (size_t i = 0; i < words.size(); ++i) {
      for (uint64_t rest = words[i]; rest != 0; rest &= rest - 1) {
        mask.tokens.push_back(static_cast<int32_t>(i * 64 + static_cast<size_t>(std::countr_zero(rest))));
      }
    }
  } else {
    mask.words = std::move(words);
  }
  bytes_ += sizeof(Mask) + 32 + mask.words.size() * sizeof(uint64_t) + mask.tokens.capacity() * sizeof(int32_t);
  return mask;
}

void StateCache::mask(StateId state, std::span<uint64_t> out) {
  const std::lock_guard lock(mutex_);
  const Mask& mask = mask_of(shortened(state));
  if (!mask.words.empty()) {
    std::copy(mask.words.begin(), mask.words.end(), out.begin());
    return;
  }
  std::fill(out.begin(), out.end(), 0);
  for (const int32_t token : mask.tokens) out[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}

bool StateCache::step(StateId& state, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  StateId at = state;
  for (const char byte : bytes) {
    at = step_byte(at, static_cast<uint8_t>(byte));
    if (at == kDead) return false;
  }
  state = at;
  return true;
}

bool StateCache::may_end(StateId state) const {
  const std::lock_guard lock(mutex_);
  return states_[state].may_end;
}

bool StateCache::must_end(StateId state) const {
  const std::lock_guard lock(mutex_);
  return states_[state].may_end && states_[state].first == states_[state].end;
}

StateId StateCache::adopt(const StateCache& other, StateId state) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  return copy_state(other, state);
}

StateId StateCache::copy_state(const StateCache& other, StateId state) {
  std::unordered_map<FrameId, FrameId> copied = {{0, 0}};
  std::vector<Reading> readings;
  for (uint32_t i = other.states_[state].first; i < other.states_[state].end; ++i) {
    Reading reading = other.readings_[i];
    std::vector<FrameId> chain;  // from the innermost call to the first that is copied already
    FrameId at = reading.calls;
    for (; !copied.contains(at); at = other.frames_[at].back.calls) chain.push_back(at);
    FrameId own = copied[at];
    while (!chain.empty()) {
      const Frame& original = other.frames_[chain.back()];
      own = frame({original.back.node, original.back.counter, own}, original.depth);
      copied[chain.back()] = own;
      chain.pop_back();
    }
    reading.calls = own;
    readings.push_back(reading);
  }
  set_ = std::move(readings);
  set_may_end_ = other.states_[state].may_end;
  return intern_set();
}

}  // namespace tandem::grammar
