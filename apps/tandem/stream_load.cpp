#include "stream_load.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <dirent.h>
#include <fmt/format.h>
#include <fstream>
#include <malloc.h>
#include <memory>
#include <poll.h>
#include <random>
#include <thread>
#include <unistd.h>

#include "base/json.h"
#include "loopback_client.h"

namespace tandem::app {
namespace {

using base::Json;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string chat(const std::string& text, int64_t max_tokens, bool stream) {
  const Json body = {{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
                     {"enable_thinking", false},
                     {"max_tokens", max_tokens},
                     {"stream", stream}};
  return loopback_post("/v1/chat/completions", body.dump());
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// One stream while it is read.
struct Stream {
  explicit Stream(uint16_t port) : client(port) {}

  // Counts the pieces that came with what was read at `now`.
  int64_t take(Clock::time_point now, std::vector<double>& gaps) {
    static constexpr std::string_view kPiece = "\"delta\":{\"content\":";
    const std::string& body = client.answer().body;
    int64_t pieces = 0;
    for (size_t at; (at = body.find(kPiece, seen)) != std::string::npos; seen = at + kPiece.size()) {
      ++pieces;
    }
    // Pieces that came with one read count as one arrival: gaps of nothing would hide the long ones.
    if (pieces > 0 && last != Clock::time_point{}) gaps.push_back(seconds_between(last, now));
    if (pieces > 0) last = now;
    // A piece's beginning may be the end of what has come.
    seen = std::max(seen, body.size() - std::min(body.size(), kPiece.size()));
    return pieces;
  }

  LoopbackClient client;
  size_t seen = 0;
  Clock::time_point last{};
  bool open = true;
};

int64_t open_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int64_t count = -3;  // ".", ".." and the folder itself
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

uint64_t resident_bytes() {
  ::malloc_trim(0);  // what lies free in the allocator is no leak
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0;
  uint64_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

uint64_t heap_in_use() {
  return ::mallinfo2().uordblks;
}

// Clients that come and leave at random; some stay a while so that others wait in the queue.
class LeavingClients {
 public:
  LeavingClients(uint16_t port, uint64_t seed) : port_(port), random_(seed) {
    for (int i = 0; i < 3000; ++i) long_prompt_ += "some words ";
  }

  void leave_once() {
    auto client = std::make_unique<LoopbackClient>(port_);
    const bool long_prompt = below(4) == 0;
    const std::string request = chat(long_prompt ? long_prompt_ : "go", 200, below(2) == 0);
    const size_t head = request.find("\r\n\r\n") + 4;
    switch (below(6)) {
      case 0:  // before anything was sent
        break;
      case 1:
        client->send(std::string_view(request).substr(0, below(head)));
        break;
      case 2:
        client->send(std::string_view(request).substr(0, head + below(request.size() - head)));
        break;
      case 3:  // as soon as it was sent: before it is read, in the queue or in the prompt
        client->send(request);
        break;
      case 4:  // in the answer, or where that is sent whole within a moment
        client->send(request);
        client->receive(std::chrono::milliseconds(below(8)));
        break;
      default:  // stays while others come
        client->send(request);
        staying_.push_back(std::move(client));
        if (staying_.size() > 12) {
          staying_.front()->close(below(2) == 0);
          staying_.pop_front();
        }
        return;
    }
    client->close(below(2) == 0);
  }

  void leave_all() { staying_.clear(); }

 private:
  uint64_t below(uint64_t bound) { return random_() % bound; }

  uint16_t port_;
  std::mt19937_64 random_;
  std::string long_prompt_;
  std::deque<std::unique_ptr<LoopbackClient>> staying_;
};

// Descriptors once no more of them are closed: the server sees a client leave a moment later.
int64_t settled_descriptors(int64_t expected) {
  for (int i = 0; i < 400 && open_descriptors() > expected; ++i) std::this_thread::sleep_for(10ms);
  return open_descriptors();
}

}  // namespace

StreamLoad measure_streams(uint16_t port, int connections, int64_t tokens) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < connections; ++i) streams.push_back(std::make_unique<Stream>(port));
  for (const auto& stream : streams) stream->client.send(chat("go", tokens, true));
  StreamLoad out;
  Clock::time_point first{};
  Clock::time_point last{};
  std::vector<pollfd> waiting(streams.size());
  int open = connections;
  while (open > 0) {
    for (size_t i = 0; i < streams.size(); ++i) {
      waiting[i] = {.fd = streams[i]->open ? streams[i]->client.descriptor() : -1, .events = POLLIN, .revents = 0};
    }
    if (::poll(waiting.data(), waiting.size(), 20'000) <= 0) break;
    for (size_t i = 0; i < streams.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      Stream& stream = *streams[i];
      const bool more = stream.client.receive(0ms);
      const auto now = Clock::now();
      const int64_t pieces = stream.take(now, out.gaps_s);
      if (pieces > 0 && first == Clock::time_point{}) first = now;
      if (pieces > 0) last = now;
      out.tokens += pieces;
      if (more && !stream.client.answer().complete) continue;
      stream.open = false;
      --open;
      if (!stream.client.answer().body.ends_with("data: [DONE]\n\n")) ++out.unfinished;
    }
  }
  out.unfinished += open;
  out.seconds = seconds_between(first, last);
  return out;
}

DisconnectTrial run_disconnects(ScriptedServer& server, uint64_t seed, int64_t disconnects) {
  DisconnectTrial out;
  const int64_t untouched = open_descriptors();
  LeavingClients clients(server.port(), seed);
  const auto run = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) clients.leave_once();
    clients.leave_all();
    // Requests of clients that have left may still wait to be read; this one is behind them.
    LoopbackClient last(server.port());
    out.answers = last.fetch(chat("go", 5, false), 20s).status == 200;
    last.close();
    server.is_idle_soon();
    settled_descriptors(untouched);
  };
  run(std::max<int64_t>(disconnects / 2, 100));
  out.descriptors_before = settled_descriptors(untouched);
  out.rss_before = resident_bytes();
  out.heap_before = heap_in_use();
  run(disconnects);
  out.disconnects = disconnects;
  const auto status = server.engine().status();
  out.slots = status.running + status.waiting;
  out.descriptors_after = settled_descriptors(untouched);
  out.rss_after = resident_bytes();
  out.heap_after = heap_in_use();
  return out;
}

}  // namespace tandem::app
