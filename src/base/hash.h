// Checksums: XXH3-128 for what Tandem writes and reads back, SHA-256 for files that others publish.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tandem::base {

// 32 lower-case hexadecimal digits, the canonical (big-endian) form that other xxHash tools print.
std::string xxh3_128_hex(std::span<const std::byte> data);

// XXH3-128 of a stream.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;
  void update(std::span<const std::byte> data);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// SHA-256 of a stream.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(std::span<const std::byte> data);
  std::string hex();  // ends the stream: call once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::base
