#include "context/sequence.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "device/buffer.h"

namespace tandem::context {

struct SequencePool::Memory {
  Memory(model::Model& the_model, int64_t page_count, int slot_count)
      : model(the_model),
        layout(the_model.state_layout()),
        pages(page_count * layout.page_bytes),
        slots(slot_count * layout.slot_bytes),
        page_total(page_count) {
    for (int64_t page = page_count - 1; page >= 0; --page) free_pages.push_back(static_cast<int32_t>(page));
    for (int slot = slot_count - 1; slot >= 0; --slot) free_slots.push_back(slot);
  }

  std::byte* slot(int32_t index) { return slots.data() + index * layout.slot_bytes; }
  std::byte* page(int32_t index) { return pages.data() + index * layout.page_bytes; }

  int32_t take_slot() {
    if (free_slots.empty()) base::unavailable("context", "all state slots are taken");
    return pop(free_slots);
  }
  static int32_t pop(std::vector<int32_t>& list) {
    const int32_t last = list.back();
    list.pop_back();
    return last;
  }

  model::Model& model;
  model::StateLayout layout;
  device::Buffer pages;
  device::Buffer slots;
  int64_t page_total;
  std::vector<int32_t> free_pages;
  std::vector<int32_t> free_slots;
};

SequencePool::SequencePool(model::Model& model, int64_t tokens, int slots)
    : memory_(std::make_shared<Memory>(model, (tokens + model::kPageTokens - 1) / model::kPageTokens, slots)) {}
SequencePool::~SequencePool() = default;

Sequence SequencePool::create() {
  return Sequence(memory_);
}
int64_t SequencePool::free_tokens() const {
  return static_cast<int64_t>(memory_->free_pages.size()) * model::kPageTokens;
}
int64_t SequencePool::capacity_tokens() const {
  return memory_->page_total * model::kPageTokens;
}
int SequencePool::free_slots() const {
  return static_cast<int>(memory_->free_slots.size());
}
int64_t SequencePool::bytes() const {
  return memory_->pages.bytes() + memory_->slots.bytes();
}

Sequence::Sequence(std::shared_ptr<SequencePool::Memory> memory)
    : memory_(std::move(memory)), slot_(memory_->take_slot()) {
  std::memset(memory_->slot(slot_), 0, static_cast<size_t>(memory_->layout.slot_bytes));
}

Sequence::Sequence(Sequence&& other) noexcept
    : memory_(std::move(other.memory_)),
      block_table_(std::move(other.block_table_)),
      slot_(std::exchange(other.slot_, -1)),
      length_(std::exchange(other.length_, 0)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(block_table_, other.block_table_);
  std::swap(slot_, other.slot_);
  std::swap(length_, other.length_);
  return *this;
}

Sequence::~Sequence() {
  if (!memory_ || slot_ < 0) return;
  memory_->free_slots.push_back(slot_);
  memory_->free_pages.insert(memory_->free_pages.end(), block_table_.rbegin(), block_table_.rend());
}

Sequence Sequence::copy() const {
  Sequence twin(memory_);
  twin.reserve(static_cast<int64_t>(block_table_.size()) * model::kPageTokens);
  std::memcpy(memory_->slot(twin.slot_), memory_->slot(slot_), static_cast<size_t>(memory_->layout.slot_bytes));
  for (size_t i = 0; i < block_table_.size(); ++i) {
    std::memcpy(memory_->page(twin.block_table_[i]), memory_->page(block_table_[i]),
                static_cast<size_t>(memory_->layout.page_bytes));
  }
  twin.length_ = length_;
  return twin;
}

void Sequence::reserve(int64_t tokens) {
  const auto pages = static_cast<size_t>((tokens + model::kPageTokens - 1) / model::kPageTokens);
  if (pages <= block_table_.size()) return;
  const size_t more = pages - block_table_.size();
  if (more > memory_->free_pages.size()) {
    base::unavailable("context", "{} tokens need {} more pages of {} tokens, {} are free", tokens, more,
                      model::kPageTokens, memory_->free_pages.size());
  }
  for (size_t i = 0; i < more; ++i) block_table_.push_back(SequencePool::Memory::pop(memory_->free_pages));
}

model::SequenceView Sequence::view() const {
  return {length_, block_table_, memory_->pages.data(), memory_->slot(slot_)};
}

void Sequence::forward(std::span<const int32_t> tokens, const model::ForwardRequest& request,
                       model::ForwardOutput& output) {
  reserve(length_ + static_cast<int64_t>(tokens.size()));
  memory_->model.forward(view(), tokens, request, output);
  length_ += static_cast<int64_t>(tokens.size());
}

void Sequence::prefetch(std::span<const int32_t> tokens) {
  memory_->model.prefetch(view(), tokens);
}

void Sequence::draft(const model::Model::DraftRequest& request, model::Model::DraftOutput& output) {
  reserve(request.first + static_cast<int64_t>(request.next_tokens.size()));
  memory_->model.draft(view(), request, output);
}

}  // namespace tandem::context
