// The states that answers under one grammar have come through, with their transitions and masks.
//
// A state is the set of all ways in which the text so far can be read: each a node, its counter, and the calls that it
// has to come back from. Equal states and equal lists of calls are kept once. States are made when they are needed,
// so the cache acts as a deterministic automaton that grows while it is used.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

namespace tandem::grammar {

using StateId = uint32_t;

// Thread-safe. REQUIRES that the automaton outlives it.
class StateCache {
 public:
  StateCache(const Automaton& automaton, std::shared_ptr<const Vocabulary> vocabulary);

  StateId start() const { return start_; }
  // The state of `other` that `state` names, in this cache. REQUIRES: the same automaton.
  StateId adopt(const StateCache& other, StateId state);
  // Nothing where the bytes are not allowed.
  bool step(StateId& state, std::string_view bytes);
  bool may_end(StateId state) const;
  bool must_end(StateId state) const;
  void mask(StateId state, std::span<uint64_t> out);

  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // of memory, about
  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  using FrameId = uint32_t;  // 0: none

  // One way of reading the text. `calls` says where to go on when the node's rule ends.
  struct Reading {
    NodeId node = 0;
    Counter counter;
    FrameId calls = 0;
    bool operator==(const Reading&) const = default;
  };
  struct Frame {
    Reading back;  // where the call comes back to
    uint32_t depth = 0;
    FrameId shortened = 0;  // the same with counters beyond the longest token cut off
  };
  struct State {
    uint32_t first = 0, end = 0;  // in readings_
    uint32_t row = 0;             // of transitions; kNoRow: none yet
    bool may_end = false;
    StateId shortened = 0;  // kUnknown: not computed yet
  };
  struct Mask {
    std::vector<uint64_t> words;  // where there are many
    std::vector<int32_t> tokens;  // where there are few
  };
  struct ReadingHash {
    size_t operator()(const Reading& reading) const;
  };

  static constexpr uint32_t kUnknown = UINT32_MAX;
  static constexpr StateId kDead = 0;
  static constexpr uint32_t kNoRow = UINT32_MAX;

  Counter shorten(Counter counter) const;
  FrameId frame(const Reading& back, uint32_t depth);
  void begin_set();
  void add(const Reading& reading);
  StateId intern_set();
  StateId step_byte(StateId state, uint8_t byte);
  uint32_t row_of(StateId state);
  StateId shortened(StateId state);
  const Mask& mask_of(StateId state);
  void walk(const TokenTrie& trie, StateId from, std::vector<uint64_t>& words);
  StateId copy_state(const StateCache& other, StateId state);

  const Automaton& automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  std::atomic<size_t> bytes_ = 0;
  StateId start_ = 0;

  std::vector<Frame> frames_;
  std::unordered_map<Reading, FrameId, ReadingHash> frame_ids_;
  std::vector<Reading> readings_;
  std::vector<State> states_;
  std::unordered_multimap<uint64_t, StateId> state_ids_;  // by hash
  std::vector<std::unique_ptr<StateId[]>> rows_;          // 256 transitions each
  std::unordered_map<StateId, Mask> masks_;

  // The set that is being built.
  std::vector<Reading> set_;      // those that wait for a byte
  std::vector<Reading> pending_;  // to be followed
  std::vector<uint32_t> seen_;    // open addressing over seen_readings_: index + 1, 0: free
  std::vector<Reading> seen_readings_;
  bool set_may_end_ = false;
  uint64_t work_ = 0;  // readings followed so far
};

}  // namespace tandem::grammar
