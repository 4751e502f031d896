// A device that has no memory and counts what is asked of it: a plan runs the same code as the work itself.
#pragma once

#include <vector>

#include "device/cards.h"

namespace tandem::device {

// Stands for a card. Gives out addresses that nothing may touch; copies do nothing.
class PlanningDevice final : public Device {
 public:
  explicit PlanningDevice(Card card) : card_(std::move(card)) {}

  std::string describe() const override { return "a plan for " + card_.name; }
  bool is_host() const override { return false; }
  bool counts_only() const override { return true; }
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* memory) noexcept override;
  // Shared memory lies in the host's; nothing is counted, and the memory is real, for hosts write to it.
  std::byte* allocate_shared(int64_t bytes) override { return host().allocate(bytes); }
  void release_shared(std::byte* memory) noexcept override { host().release(memory); }
  void upload(void*, const void*, int64_t) override {}
  void download(void*, const void*, int64_t) override {}
  void fetch(void*, const void*, int64_t) override {}
  void copy(void*, const void*, int64_t) override {}
  void zero(void*, int64_t) override {}
  void finish() override {}

  const Card& card() const { return card_; }
  int64_t bytes() const { return bytes_; }  // taken and not given back

 private:
  struct Block {
    std::byte* address;
    int64_t bytes;
  };
  Card card_;
  int64_t bytes_ = 0;
  uintptr_t next_ = uintptr_t{1} << 44;
  std::vector<Block> blocks_;
};

}  // namespace tandem::device
