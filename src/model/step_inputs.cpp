#include "model/step_inputs.h"

#include <algorithm>

#include "base/units.h"

namespace tandem::model {

namespace {

int64_t advance(int64_t& total, int64_t bytes) {
  const int64_t at = total;
  total += static_cast<int64_t>(base::round_up(static_cast<uint64_t>(bytes), 256));
  return at;
}

}  // namespace

void StepInputs::reserve(int64_t columns) {
  if (columns <= columns_) return;
  int64_t bytes = 0;
  (void)advance(bytes, columns * static_cast<int64_t>(sizeof(ops::Run)));
  ids_ = advance(bytes, columns * 4);
  faults_ = advance(bytes, columns * 4);
  ngram_ = advance(bytes, columns * ngram_floats_ * 4);
  device_.finish();
  memory_ = device::Buffer(device_, bytes);
  if (!device_.is_host()) staging_ = device::Buffer::shared(device_, bytes);
  columns_ = columns;
}

void StepInputs::upload(int64_t columns) {
  std::fill_n(faults(), columns, -1);
  if (device_.is_host()) return;
  device_.upload(memory_.data(), staging_.data(), faults_ + columns * 4);
}

void StepInputs::upload_ngram(int64_t columns) {
  if (device_.is_host()) return;
  device_.upload(memory_.data() + ngram_, staging_.data() + ngram_, columns * ngram_floats_ * 4);
}

}  // namespace tandem::model
