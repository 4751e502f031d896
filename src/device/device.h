// One device: its memory, and copies to and from it.
//
// Memory of the host device can be read and written by the processor; memory of a card by its kernels alone. Copies
// take effect in order with the operations that the device runs (ops/ops.h); those that involve the host say whether
// they wait. Used by one thread at a time. Every call throws base::Error: kUnavailable where memory does not suffice
// (with the figures), device::Fault where the device fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"

namespace tandem::device {

// A device that failed: nothing on it can be trusted any more, and the process should end.
class Fault : public base::Error {
 public:
  Fault(std::string source, const std::string& message)
      : base::Error(base::ErrorKind::kInternal, std::move(source), message) {}
};

// Operations and copies taken down once, to be run again with what then lies at their addresses.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void run() = 0;
};

// A point in a device's work.
class Mark {
 public:
  virtual ~Mark() = default;
  // Here: behind everything that was asked of the device so far.
  virtual void set() = 0;
  // Waits until the device has come to where the mark was last set; not at all where it never was. Several threads may
  // wait, beside what others ask of the device.
  virtual void wait() = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string describe() const = 0;  // "the processor", "NVIDIA H200 (cuda:0)"
  virtual bool is_host() const = 0;
  virtual bool counts_only() const { return false; }  // a plan: nothing is computed, memory is only counted
  // Makes the calling thread one that may use the device; before the first call of every thread.
  virtual void bind_thread() {}

  // Memory that could still be taken; on the host the most that a number can say, for it is not asked.
  virtual int64_t free_bytes() const { return INT64_MAX; }
  // Uninitialised, at a multiple of 256 bytes.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* memory) noexcept = 0;
  // Memory that both the processor and the device's kernels reach: page-locked, at one address for both.
  virtual std::byte* allocate_shared(int64_t bytes) = 0;
  virtual void release_shared(std::byte* memory) noexcept = 0;

  // From the host. The source may be reused when the call returns, unless it is shared memory: then when the device has
  // come past the copy.
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  // To the host; waits for it and everything before.
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  // To shared memory, without waiting: it is there after finish().
  virtual void fetch(void* to_shared, const void* from, int64_t bytes) = 0;
  // Within the device.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  virtual void zero(void* to, int64_t bytes) = 0;
  // Waits for everything that was asked of the device.
  virtual void finish() = 0;
  // For devices that do not tell one point from another: a mark that waits for everything.
  virtual std::unique_ptr<Mark> make_mark();

  // Takes down what `work` asks of the device, without doing it; null where the device cannot (the host). `work` may
  // not allocate, download or wait. The addresses that it names must stay as long as the recording.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) {
    (void)work;
    return nullptr;
  }
};

// The processor's own memory.
Device& host();

}  // namespace tandem::device
