#include "capture_replay.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "loopback_client.h"

namespace tandem::app {
namespace {

using base::Json;

constexpr uint64_t kMostCaptureBytes = uint64_t{64} << 20;
constexpr std::chrono::seconds kAnswerTime{60};

Json read_json(const std::filesystem::path& path) {
  return base::parse_json(base::read_text(path, kMostCaptureBytes), path.string());
}

// The header as it was, but for what this connection decides itself.
std::string request_bytes(const Json& capture, const std::string& source) {
  const Json& captured_body = base::json_member(capture, "body");
  const std::string body = captured_body.is_null()     ? ""
                           : captured_body.is_string() ? captured_body.get<std::string>()
                                                       : captured_body.dump();
  const std::string method = base::json_string(capture, "method", source);
  std::string out =
      fmt::format("{} {} HTTP/1.1\r\nhost: 127.0.0.1\r\n", method, base::json_string(capture, "url", source));
  for (const auto& [name, value] : base::json_member(capture, "headers").items()) {
    if (name == "host" || name == "content-length" || name == "transfer-encoding" || !value.is_string()) continue;
    out += fmt::format("{}: {}\r\n", name, value.get<std::string>());
  }
  if (method == "POST") out += fmt::format("content-length: {}\r\n", body.size());
  return out + "\r\n" + body;
}

std::string fault_of(const Json& entry, const LoopbackAnswer& answer, bool head_only) {
  const Json& expected = base::json_member(entry, "expect");
  const bool status = std::any_of(expected.begin(), expected.end(), [&](const Json& e) { return e == answer.status; });
  if (!status) return fmt::format("status {}: {}", answer.status, answer.body.substr(0, 300));
  if (!answer.complete) return "the answer is not complete";
  if (head_only) return {};
  const bool stream = answer.content_type.starts_with("text/event-stream");
  if (answer.status == 200 && stream != base::json_bool(entry, "stream", false, "index.json")) {
    return "the answer has content type " + answer.content_type;
  }
  if (stream) return event_stream_fault(answer.body);
  return Json::accept(answer.body) ? "" : "the body is not JSON: " + answer.body.substr(0, 300);
}

bool ends_stream(std::string_view name, std::string_view data) {
  return data == "[DONE]" || name == "message_stop" || name == "response.completed" || name == "response.incomplete";
}

}  // namespace

std::string event_stream_fault(const std::string& stream) {
  if (!stream.ends_with("\n\n")) return "the stream does not end with a whole event";
  std::string name;
  std::string data;
  bool has_data = false;
  bool ended = false;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find('\n', at);
    const std::string_view line = std::string_view(stream).substr(at, end - at);
    at = end + 1;
    if (line.starts_with("event: ")) {
      name = line.substr(7);
    } else if (line.starts_with("data: ")) {
      if (has_data) return "an event has two lines of data";
      data = line.substr(6);
      has_data = true;
    } else if (line.empty()) {
      if (has_data && ended) return "an event follows the last: " + data.substr(0, 200);
      if (has_data && data != "[DONE]" && !Json::accept(data)) return "data is not JSON: " + data.substr(0, 200);
      if (name == "error" || name == "response.failed") return "the stream tells an error: " + data.substr(0, 300);
      ended = ended || (has_data && ends_stream(name, data));
      name.clear();
      has_data = false;
    } else if (!line.starts_with(':')) {
      return fmt::format("a line is none of an event stream: {}", line.substr(0, 200));
    }
  }
  return ended ? "" : "the last event is missing";
}

CaptureReplay replay_captures(const std::filesystem::path& folder, uint16_t port) {
  CaptureReplay out;
  for (const Json& entry : read_json(folder / "index.json")) {
    const std::string file = base::json_string(entry, "file", "index.json");
    if (file.find('/') != std::string::npos) base::bad_input("index.json", "{} is not in its folder", file);
    const Json capture = read_json(folder / file);
    const bool head_only = base::json_string(capture, "method", file) == "HEAD";
    LoopbackClient client(port);
    const LoopbackAnswer answer = client.fetch(request_bytes(capture, file), kAnswerTime, head_only);
    const std::string fault = fault_of(entry, answer, head_only);
    ++out.total;
    if (!fault.empty()) out.faults.push_back(fmt::format("{}: {}", file, fault));
  }
  return out;
}

}  // namespace tandem::app
