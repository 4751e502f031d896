#include "base/hash.h"

#include <fmt/format.h>
#include <new>
#include <openssl/evp.h>
#include <xxhash.h>

#include "base/error.h"

namespace tandem::base {

namespace {

std::string to_hex(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string canonical_hex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return to_hex(canonical.digest);
}

}  // namespace

std::string xxh3_128_hex(std::span<const std::byte> data) {
  return canonical_hex(XXH3_128bits(data.data(), data.size()));
}

struct Xxh3::State {
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state{XXH3_createState(), XXH3_freeState};
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {
  if (!state_->state) throw std::bad_alloc();
  XXH3_128bits_reset(state_->state.get());
}
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;
void Xxh3::update(std::span<const std::byte> data) {
  XXH3_128bits_update(state_->state.get(), data.data(), data.size());
}
std::string Xxh3::hex() const {
  return canonical_hex(XXH3_128bits_digest(state_->state.get()));
}

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (!state_->context) throw std::bad_alloc();
  if (EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) != 1) {
    internal_error("sha256", "OpenSSL has no SHA-256");
  }
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
void Sha256::update(std::span<const std::byte> data) {
  EVP_DigestUpdate(state_->context.get(), data.data(), data.size());
}
std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  EVP_DigestFinal_ex(state_->context.get(), digest.data(), &bytes);
  return to_hex(std::span(digest).first(bytes));
}

}  // namespace tandem::base
