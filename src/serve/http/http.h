// HTTP messages as handlers see them: plain values, without the library that reads and writes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::serve {

// Header fields in order; names are compared without case.
class Headers {
 public:
  void add(std::string name, std::string value) { fields_.emplace_back(std::move(name), std::move(value)); }
  // The first field of this name.
  std::optional<std::string_view> find(std::string_view name) const;
  size_t count(std::string_view name) const;
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

// The members' initialisers are written out so that designated ones may leave them out.
struct HttpRequest {
  std::string id = {};      // the server's name for it, sent back as x-request-id
  std::string method = {};  // as it came: "GET"
  std::string path = {};    // from the target, before '?', as it came (percent signs and all)
  std::string query = {};   // after '?'
  Headers headers = {};
  std::string body = {};
  std::string parameter = {};  // what the route's trailing {...} took, with percent signs decoded
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers = {};  // beside content-type, content-length, connection and x-request-id, which the transport writes
  std::string body = {};
};

inline constexpr const char* kEventStream = "text/event-stream";

// "Not Found"; "Error" for a status that the server never sends.
std::string_view status_phrase(int status);
// Percent signs followed by two hexadecimal digits become that byte; other percent signs stay.
std::string percent_decode(std::string_view text);
bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace tandem::serve
