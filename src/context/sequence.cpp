#include "context/sequence.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/buffer.h"

namespace tandem::context {

struct SequencePool::Memory {
  Memory(model::Model& the_model, int64_t page_count, int slot_count)
      : model(the_model),
        layout(the_model.state_layout()),
        device(the_model.device()),
        pages(device, page_count * layout.page_bytes),
        slots(device, slot_count * layout.slot_bytes),
        tables(device, slot_count * page_count * static_cast<int64_t>(sizeof(int32_t))),
        page_total(page_count) {
    for (int64_t page = page_count - 1; page >= 0; --page) free_pages.push_back(static_cast<int32_t>(page));
    for (int slot = slot_count - 1; slot >= 0; --slot) free_slots.push_back(slot);
  }

  std::byte* slot(int32_t index) { return slots.data() + index * layout.slot_bytes; }
  // The block table of the sequence in a slot; any sequence may take all pages.
  int32_t* table(int32_t slot) { return tables.as<int32_t>() + slot * page_total; }
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
  device::Device& device;
  device::Buffer pages;
  device::Buffer slots;
  device::Buffer tables;
  int64_t page_total;
  std::vector<int32_t> free_pages;
  std::vector<int32_t> free_slots;
};

SequencePool::SequencePool(model::Model& model, int64_t tokens, int slots)
    : memory_(std::make_shared<Memory>(model, (tokens + model::kPageTokens - 1) / model::kPageTokens, slots)) {}
SequencePool::~SequencePool() = default;

Sequence SequencePool::create() {
  memory_->device.bind_thread();
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
std::span<std::byte> SequencePool::page_memory() {
  return memory_->pages.span();
}
int64_t SequencePool::bytes() const {
  return memory_->pages.bytes() + memory_->slots.bytes();
}

Sequence::Sequence(std::shared_ptr<SequencePool::Memory> memory)
    : memory_(std::move(memory)), slot_(memory_->take_slot()) {
  memory_->device.zero(memory_->slot(slot_), memory_->layout.slot_bytes);
}

Sequence::Sequence(Sequence&& other) noexcept
    : memory_(std::move(other.memory_)),
      block_table_(std::move(other.block_table_)),
      slot_(std::exchange(other.slot_, -1)),
      length_(std::exchange(other.length_, 0)),
      window_(other.window_) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(block_table_, other.block_table_);
  std::swap(slot_, other.slot_);
  std::swap(length_, other.length_);
  std::swap(window_, other.window_);
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
  memory_->device.copy(memory_->slot(twin.slot_), memory_->slot(slot_), memory_->layout.slot_bytes);
  for (size_t i = 0; i < block_table_.size(); ++i) {
    memory_->device.copy(memory_->page(twin.block_table_[i]), memory_->page(block_table_[i]),
                         memory_->layout.page_bytes);
  }
  twin.length_ = length_;
  twin.window_ = window_;
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
  const size_t known = block_table_.size();
  for (size_t i = 0; i < more; ++i) block_table_.push_back(SequencePool::Memory::pop(memory_->free_pages));
  memory_->device.upload(memory_->table(slot_) + known, block_table_.data() + known,
                         static_cast<int64_t>(more * sizeof(int32_t)));
}

model::SequenceView Sequence::view() const {
  return {.length = length_,
          .page_count = static_cast<int64_t>(block_table_.size()),
          .block_table = memory_->table(slot_),
          .pages = memory_->pages.data(),
          .slot = memory_->slot(slot_),
          .window = window_};
}

void Sequence::forward(std::span<const int32_t> tokens, const model::ForwardRequest& request,
                       model::ForwardOutput& output) {
  Sequence* const self = this;
  forward({&self, 1}, {&tokens, 1}, request, output);
}

void Sequence::forward(std::span<Sequence* const> sequences, std::span<const std::span<const int32_t>> tokens,
                       const model::ForwardRequest& request, model::ForwardOutput& output) {
  std::vector<model::Part> parts;
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->reserve(sequences[i]->length_ + static_cast<int64_t>(tokens[i].size()));
    parts.push_back({sequences[i]->view(), tokens[i]});
  }
  sequences[0]->memory_->model.forward(parts, request, output);
  if (!request.advance) return;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const model::SequenceView after = parts[i].view.after(tokens[i]);
    sequences[i]->length_ = after.length;
    sequences[i]->window_ = after.window;
  }
}

int32_t Sequence::greedy(int64_t tokens, std::span<const uint64_t> allowed) {
  return memory_->model.greedy(tokens, {&allowed, 1}).at(0);
}

model::Model::TopLogits Sequence::top_logits(int64_t tokens, std::span<const uint64_t> allowed) {
  return memory_->model.top_logits(tokens, {&allowed, 1}).at(0);
}

std::span<const float> Sequence::read_logits() {
  return memory_->model.read_logits();
}

void Sequence::settle() {
  memory_->model.settle();
}

void Sequence::pretend(int64_t tokens) {
  reserve(tokens);
  length_ = tokens;
}

void Sequence::prefetch(std::span<const int32_t> tokens) {
  memory_->model.prefetch(view(), tokens);
}

void Sequence::draft(const model::Model::DraftRequest& request, model::Model::DraftOutput& output) {
  reserve(request.first + static_cast<int64_t>(request.next_tokens.size()));
  memory_->model.draft(view(), request, output);
}

}  // namespace tandem::context
