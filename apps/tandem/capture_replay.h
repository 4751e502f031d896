// Captured requests of real clients, sent again to a server of this machine (tests/captures/README.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::app {

struct CaptureReplay {
  int64_t total = 0;
  std::vector<std::string> faults{};  // "FILE: what was wrong", one for each capture that was not answered well
};

// Sends every request of FOLDER/index.json: method, address, header and body. One is answered well where the status is
// expected, an event stream consists of whole events with JSON data up to the one that ends it, and any other body is
// JSON. Throws base::Error where the folder is not readable.
CaptureReplay replay_captures(const std::filesystem::path& folder, uint16_t port);

// Empty, or what is wrong with this event stream.
std::string event_stream_fault(const std::string& stream);

}  // namespace tandem::app
