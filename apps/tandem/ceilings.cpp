#include "ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <immintrin.h>
#include <string>
#include <unistd.h>

#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "device/buffer.h"

namespace tandem::app {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kPiece = kMiB;  // bytes of one piece of work

std::vector<double> time_rounds(int rounds, const std::function<void()>& body) {
  body();  // warms caches, pages and clocks
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return seconds;
}

// Written in full, so that every page is the process's own.
device::Buffer make_buffer(base::WorkerPool& pool, uint64_t bytes) {
  device::Buffer buffer(static_cast<int64_t>(bytes));
  pool.run(static_cast<int64_t>(bytes / kPiece), 1, [&](int64_t begin, int64_t end) {
    std::memset(buffer.data() + begin * static_cast<int64_t>(kPiece), 1, static_cast<size_t>(end - begin) * kPiece);
  });
  return buffer;
}

[[gnu::target("avx2")]] uint64_t sum_piece(const std::byte* data) {
  __m256i sums[8] = {};
  for (uint64_t at = 0; at < kPiece; at += sizeof sums) {
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) {
      sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at) + i));
    }
  }
  for (size_t i = 1; i < 8; ++i) sums[0] = _mm256_add_epi64(sums[0], sums[i]);
  alignas(32) uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums[0]);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

constexpr int64_t kDepth = 256;  // of the product: panels of 6 and 32 columns stay in a first-level cache

// The inner loops are unrolled so that the sums stay in registers.
// c[6][16] += a[kDepth][6] * b[kDepth][16]; 12 sums fill the latency of two multiply-adds a cycle.
[[gnu::target("avx2,fma")]] void matmul_avx2(const float* a, const float* b, float* c) {
  __m256 sums[6][2] = {};
  for (int64_t k = 0; k < kDepth; ++k) {
    const __m256 low = _mm256_load_ps(b + k * 16);
    const __m256 high = _mm256_load_ps(b + k * 16 + 8);
#pragma GCC unroll 6
    for (int row = 0; row < 6; ++row) {
      const __m256 value = _mm256_broadcast_ss(a + k * 6 + row);
      sums[row][0] = _mm256_fmadd_ps(value, low, sums[row][0]);
      sums[row][1] = _mm256_fmadd_ps(value, high, sums[row][1]);
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < 6; ++row) {
    _mm256_store_ps(c + row * 16, sums[row][0]);
    _mm256_store_ps(c + row * 16 + 8, sums[row][1]);
  }
}

// The same with 32 columns.
[[gnu::target("avx512f")]] void matmul_avx512(const float* a, const float* b, float* c) {
  __m512 sums[6][2] = {};
  for (int64_t k = 0; k < kDepth; ++k) {
    const __m512 low = _mm512_load_ps(b + k * 32);
    const __m512 high = _mm512_load_ps(b + k * 32 + 16);
#pragma GCC unroll 6
    for (int row = 0; row < 6; ++row) {
      const __m512 value = _mm512_set1_ps(a[k * 6 + row]);
      sums[row][0] = _mm512_fmadd_ps(value, low, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(value, high, sums[row][1]);
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < 6; ++row) {
    _mm512_store_ps(c + row * 32, sums[row][0]);
    _mm512_store_ps(c + row * 32 + 16, sums[row][1]);
  }
}

}  // namespace

uint64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE)) / 2;
}

uint64_t ceiling_buffer_bytes() {
  const uint64_t quarter = available_memory_bytes() / 4;
  return std::clamp(quarter / kMiB * kMiB, 2 * kMiB, 2048 * kMiB);
}

Ceiling measure_read(base::WorkerPool& pool, int rounds) {
  const device::Buffer buffer = make_buffer(pool, ceiling_buffer_bytes());
  return measure_read(pool, {buffer.data(), static_cast<size_t>(buffer.bytes())}, rounds);
}

Ceiling measure_read(base::WorkerPool& pool, std::span<const std::byte> memory, int rounds) {
  const uint64_t bytes = memory.size() / kPiece * kPiece;
  std::atomic<uint64_t> total = 0;
  auto seconds = time_rounds(rounds, [&] {
    pool.run(static_cast<int64_t>(bytes / kPiece), 8, [&](int64_t begin, int64_t end) {
      uint64_t sum = 0;
      for (int64_t piece = begin; piece < end; ++piece) sum += sum_piece(memory.data() + piece * int64_t{kPiece});
      total += sum;  // makes the reads count
    });
  });
  if (total == 0) base::internal_error("bench", "the read was not carried out");
  return {bytes, std::move(seconds)};
}

Ceiling measure_copy(base::WorkerPool& pool, int rounds) {
  const uint64_t half = ceiling_buffer_bytes() / 2 / kPiece * kPiece;
  device::Buffer buffer = make_buffer(pool, 2 * half);
  auto seconds = time_rounds(rounds, [&] {
    pool.run(static_cast<int64_t>(half / kPiece), 8, [&](int64_t begin, int64_t end) {
      std::byte* const from = buffer.data() + begin * int64_t{kPiece};
      std::memcpy(from + half, from, static_cast<size_t>(end - begin) * kPiece);
    });
  });
  return {2 * half, std::move(seconds)};
}

Ceiling measure_matmul(base::WorkerPool& pool, int rounds) {
  const bool wide = base::cpu_level() >= base::CpuLevel::kAvx512;
  const int64_t columns = wide ? 32 : 16;
  constexpr int64_t kProducts = 20000;  // of each thread
  const int64_t threads = pool.threads();
  auto seconds = time_rounds(rounds, [&] {
    pool.run(threads, 1, [&](int64_t begin, int64_t end) {
      alignas(64) float a[kDepth * 6];
      alignas(64) float b[kDepth * 32];
      alignas(64) float c[6 * 32];
      std::fill(std::begin(a), std::end(a), 1.0f);
      std::fill(std::begin(b), std::end(b), 1.0f);
      for (int64_t product = 0; product < (end - begin) * kProducts; ++product) {
        wide ? matmul_avx512(a, b, c) : matmul_avx2(a, b, c);
        a[product % (kDepth * 6)] = c[0];  // so that no product can be left out
      }
    });
  });
  return {static_cast<uint64_t>(threads * kProducts * 2 * 6 * columns * kDepth), std::move(seconds)};
}

Ceiling measure_disk(const std::filesystem::path& path, int rounds) {
  const auto file = base::File::open_read(path);
  const uint64_t bytes = std::min(file.size(), 256 * kMiB);
  if (bytes == 0) base::bad_input(path.string(), "is empty");
  std::vector<std::byte> block(std::min(bytes, 4 * kMiB));
  auto seconds = time_rounds(rounds, [&] {
    file.drop_cache(0, bytes);
    for (uint64_t at = 0; at < bytes; at += block.size()) {
      file.read_at(at, std::span(block).first(std::min<uint64_t>(block.size(), bytes - at)));
    }
  });
  return {bytes, std::move(seconds)};
}

}  // namespace tandem::app
