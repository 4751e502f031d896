// Many clients of a server of this machine at once: how fast their streams are, and what they leave behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scripted_server.h"

namespace tandem::app {

struct StreamLoad {
  int64_t tokens = 0;            // events with a piece of the answer, of all streams
  double seconds = 0;            // from the first of them to the last
  std::vector<double> gaps_s{};  // between two arrivals of one stream; empty where every stream came with one read
  int64_t unfinished = 0;        // streams that did not end well
};

// `connections` chat completions of `tokens` tokens each, streamed at once and read by one thread.
StreamLoad measure_streams(uint16_t port, int connections, int64_t tokens);

struct DisconnectTrial {
  int64_t disconnects = 0;
  // After the warm-up and after all of them, in bytes: what the process holds, and what of its heap is in use. Free
  // pieces between used ones make the first grow a little where the second does not.
  uint64_t rss_before = 0, rss_after = 0;
  uint64_t heap_before = 0, heap_after = 0;
  int64_t descriptors_before = 0, descriptors_after = 0;
  int slots = 0;         // requests that the engine still holds
  bool answers = false;  // a request after all that is answered
};

// Clients that leave in the head, in the body, in the queue, while their prompt is read and while they are answered,
// in random order; half the number warms up. The same order for the same seed.
DisconnectTrial run_disconnects(ScriptedServer& server, uint64_t seed, int64_t disconnects);

}  // namespace tandem::app
