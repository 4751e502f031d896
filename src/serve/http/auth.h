// Who may ask: keys, and the Host and Origin checks that keep web pages out.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/errors.h"
#include "serve/http/http.h"

namespace tandem::serve {

// The accepted keys, kept as digests. Comparing takes the same time whatever the key and wherever it differs.
class ApiKeys {
 public:
  // Printable ASCII without spaces, at least one character; throws base::Error{kBadInput} otherwise, without the key.
  void add(std::string_view key, const std::string& source);
  // One key a line; blank lines and the space around keys are ignored. An Error where the file holds no key.
  void add_file(const std::filesystem::path& path);

  bool empty() const { return digests_.empty(); }
  bool accept(std::string_view key) const;

 private:
  std::vector<std::string> digests_;
};

// 127.0.0.0/8, ::1 and "localhost".
bool is_loopback(std::string_view host);

// Throws base::Error{kBadInput} where the server would listen beyond this machine and ask for no key.
void require_key_beyond_loopback(const std::string& host, const ApiKeys& keys);

class AccessGuard {
 public:
  // `hosts`: names, without port, by which clients may call the server beside localhost and IP addresses.
  AccessGuard(ApiKeys keys, std::vector<std::string> hosts);

  // 401 without a valid key (Authorization: Bearer, or x-api-key) where keys are set and the route is not open; 403 for
  // a page of another origin; 421 for a Host that is not one of this server's, where no key is set: a page whose name
  // was pointed at this address (DNS rebinding) shows itself by it.
  std::optional<ApiError> check(const HttpRequest& head, bool open_route) const;

 private:
  bool known_host(std::string_view host) const;

  ApiKeys keys_;
  std::vector<std::string> hosts_;
};

}  // namespace tandem::serve
