#include "serve/http/auth.h"

#include <algorithm>
#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <span>

#include "base/file.h"
#include "base/hash.h"

namespace tandem::serve {

namespace {

constexpr uint64_t kMaxKeyFileBytes = 1 << 20;

std::string digest(std::string_view key) {
  base::Sha256 hash;
  hash.update(std::as_bytes(std::span(key.data(), key.size())));
  return hash.hex();
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// "name:8080", "[::1]:8080" or without port; the name alone, without brackets.
std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.find(']') == host.npos ? "" : host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

bool is_ip_address(std::string_view name) {
  unsigned char bytes[sizeof(in6_addr)];
  const std::string text(name);
  return inet_pton(AF_INET, text.c_str(), bytes) == 1 || inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

// "Bearer KEY" in any case and with any number of spaces.
std::optional<std::string_view> bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return std::nullopt;
  if (!equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  return trim(authorization.substr(kScheme.size()));
}

ApiError unauthorized(bool given) {
  ApiError error = http_error(
      401, given ? "the API key is not valid" : "an API key is needed: send Authorization: Bearer KEY, or x-api-key",
      "invalid_api_key");
  error.headers.add("www-authenticate", "Bearer");
  return error;
}

}  // namespace

void ApiKeys::add(std::string_view key, const std::string& source) {
  if (key.empty()) base::bad_input(source, "holds no key");
  if (!std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
    base::bad_input(source, "a key may hold only printable ASCII characters without spaces");
  }
  digests_.push_back(digest(key));
}

void ApiKeys::add_file(const std::filesystem::path& path) {
  const std::string text = base::read_text(path, kMaxKeyFileBytes);
  bool found = false;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view key = trim(std::string_view(text).substr(start, end - start));
    if (!key.empty()) {
      add(key, path.string());
      found = true;
    }
    start = end + 1;
  }
  if (!found) base::bad_input(path.string(), "holds no key");
}

bool ApiKeys::accept(std::string_view key) const {
  const std::string given = digest(key);
  bool accepted = false;
  for (const std::string& known : digests_) {
    const bool equal = CRYPTO_memcmp(known.data(), given.data(), given.size()) == 0;
    accepted = accepted || equal;
  }
  return accepted;
}

bool is_loopback(std::string_view host) {
  const std::string text(host);
  if (text == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

void require_key_beyond_loopback(const std::string& host, const ApiKeys& keys) {
  if (!keys.empty() || is_loopback(host)) return;
  base::bad_input("--host",
                  "{} can be reached from other machines, so an API key is needed: give --api-key-file or set "
                  "TANDEM_API_KEY",
                  host);
}

AccessGuard::AccessGuard(ApiKeys keys, std::vector<std::string> hosts)
    : keys_(std::move(keys)), hosts_(std::move(hosts)) {}

bool AccessGuard::known_host(std::string_view host) const {
  const std::string_view name = host_name(host);
  if (equal_ignoring_case(name, "localhost") || is_ip_address(name)) return true;
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [&](const std::string& known) { return equal_ignoring_case(known, name); });
}

std::optional<ApiError> AccessGuard::check(const HttpRequest& head, bool open_route) const {
  const auto host = head.headers.find("host");
  if (keys_.empty() && host && !known_host(*host)) {
    return http_error(421,
                      "this server is not called by that Host: use localhost, an IP address or a name given with "
                      "--allow-host",
                      "unknown_host");
  }
  if (const auto origin = head.headers.find("origin")) {
    const size_t scheme = origin->find("://");
    const bool same =
        host && scheme != std::string_view::npos && equal_ignoring_case(origin->substr(scheme + 3), *host);
    if (!same) return http_error(403, "pages of other origins may not use this server", "foreign_origin");
  }
  if (keys_.empty() || open_route) return std::nullopt;
  std::optional<std::string_view> key;
  if (const auto authorization = head.headers.find("authorization")) key = bearer_key(*authorization);
  if (!key) key = head.headers.find("x-api-key");
  if (!key || !keys_.accept(*key)) return unauthorized(key.has_value());
  return std::nullopt;
}

}  // namespace tandem::serve
