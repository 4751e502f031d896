#include "random_reads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <liburing.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "bench_report.h"
#include "device/buffer.h"

namespace tandem::app {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr int kMostReadThreads = 64;

using ReadClock = std::chrono::steady_clock;

bool ring_allowed() {
  io_uring ring{};
  if (io_uring_queue_init(2, &ring, 0) < 0) return false;
  io_uring_queue_exit(&ring);
  return true;
}

// splitmix64: every call another place, the same in every run.
uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

}  // namespace

RandomReads::RandomReads(const base::File& file)
    : plain_(file), direct_(file.reopen_direct()), ring_(ring_allowed()), blocks_(file.size() / kBlockBytes) {
  if (blocks_ == 0) base::bad_input(file.path().string(), "holds less than one block");
}

std::string RandomReads::description() const {
  return std::string(ring_ ? "io_uring" : "pread") + (direct_ ? ", direct" : ", through the page cache");
}

uint64_t RandomReads::next_offset() {
  return mix(++state_) % blocks_ * kBlockBytes;
}

double RandomReads::run(uint64_t count, int depth) {
  return ring_ ? run_ring(count, depth) : run_threads(count, depth);
}

double RandomReads::run_ring(uint64_t count, int depth) {
  const int descriptor = (direct_ ? *direct_ : plain_).descriptor();
  device::Buffer blocks(depth * static_cast<int64_t>(kBlockBytes));
  io_uring ring{};
  if (const int error = io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0); error < 0) {
    base::unavailable("io_uring", "no ring of {} entries: {}", depth, std::strerror(-error));
  }
  uint64_t asked = 0;
  const auto ask = [&](uint64_t index) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring);
    io_uring_prep_read(entry, descriptor, blocks.data() + index * kBlockBytes, kBlockBytes, next_offset());
    io_uring_sqe_set_data64(entry, index);
    ++asked;
  };
  const auto begin = ReadClock::now();
  for (int i = 0; i < depth && asked < count; ++i) ask(static_cast<uint64_t>(i));
  int fault = 0;
  for (uint64_t done = 0; done < count && fault == 0;) {
    if (const int error = io_uring_submit_and_wait(&ring, 1); error < 0 && error != -EINTR) fault = error;
    io_uring_cqe* cqe = nullptr;
    while (done < count && io_uring_peek_cqe(&ring, &cqe) == 0) {
      const uint64_t index = io_uring_cqe_get_data64(cqe);
      if (cqe->res != static_cast<int>(kBlockBytes)) fault = cqe->res < 0 ? cqe->res : -EIO;
      io_uring_cqe_seen(&ring, cqe);
      ++done;
      if (asked < count) ask(index);
    }
  }
  const double seconds = seconds_since(begin);
  io_uring_queue_exit(&ring);
  if (fault != 0) base::unavailable(plain_.path().string(), "cannot read: {}", std::strerror(-fault));
  return seconds;
}

double RandomReads::run_threads(uint64_t count, int depth) {
  const base::File& file = direct_ ? *direct_ : plain_;
  std::atomic<uint64_t> taken = 0;
  std::atomic<bool> failed = false;
  const uint64_t first = state_;
  state_ += count;
  std::vector<std::thread> threads;
  const auto begin = ReadClock::now();
  for (int t = 0; t < std::min(depth, kMostReadThreads); ++t) {
    threads.emplace_back([&] {
      alignas(kBlockBytes) std::byte block[kBlockBytes];
      for (uint64_t i = taken++; i < count; i = taken++) {
        const auto offset = static_cast<off_t>(mix(first + i) % blocks_ * kBlockBytes);
        if (::pread(file.descriptor(), block, kBlockBytes, offset) != ssize_t{kBlockBytes}) failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed) base::unavailable(plain_.path().string(), "cannot read");
  return seconds_since(begin);
}

}  // namespace tandem::app
