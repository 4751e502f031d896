// Columns of one run on the host, and the faults of experts, for tests of operations.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "ops/ops.h"

namespace tandem::ops {

// Tokens [position, position + tokens) of one sequence.
class OneRun {
 public:
  OneRun(int64_t position, int64_t tokens, void* slot, const int32_t* block_table)
      : run_{{{position, tokens, static_cast<std::byte*>(slot), block_table}}} {}
  // Valid as long as this.
  Columns columns() const {
    return {.runs = run_, .table = run_.data(), .each = run_[0].tokens, .reach = run_[0].position + run_[0].tokens};
  }

 private:
  std::array<Run, 1> run_;
};

// Runs the experts; the first column that they found faulty, -1 for none.
inline int64_t first_faulty(Ops& ops, Ops::Experts args) {
  std::vector<int32_t> faults(static_cast<size_t>(args.tokens), -1);
  args.faults = faults.data();
  args.fault = 7;
  ops.experts(args);
  const auto found = std::find(faults.begin(), faults.end(), 7);
  return found == faults.end() ? -1 : found - faults.begin();
}

// A selection with its memory on the host.
struct HostSelection {
  HostSelection(int64_t columns, int64_t budget)
      : blocks(static_cast<size_t>(columns * budget), -7), counts(static_cast<size_t>(columns), -7) {
    view = {budget, blocks.data(), counts.data()};
  }
  std::vector<int32_t> blocks, counts;
  BlockSelection view;
};

}  // namespace tandem::ops
