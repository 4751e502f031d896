// The routed experts of one layer on the processor: every worker streams its own rows of every expert, with one barrier
// between gate/up and down (docs/architecture.md, "Experts on the processor").
#pragma once

#include <cstdint>
#include <vector>

#include "base/pool.h"
#include "ops/host/kernels.h"
#include "ops/host/scratch.h"
#include "ops/ops.h"

namespace tandem::ops::host {

// Keeps its scratch memory between calls: a step of a size that was seen before allocates nothing. One call at a time.
class HostExperts {
 public:
  // Both must outlive the object.
  HostExperts(base::WorkerPool& pool, const Kernels& kernels) : pool_(pool), kernels_(kernels) {}

  // Ops::experts. `round_inputs`: where activations are not quantised, they are rounded to BF16.
  Fault run(const Ops::Experts& args, bool round_inputs);

 private:
  // The columns of the layer that one expert computes: slots [first, first + count).
  struct Group {
    int64_t expert;
    int64_t first;
    int64_t count;
  };

  void make_groups(const Ops::Experts& args);
  void take_scratch(const Ops::Experts& args);
  void quantise_inputs(const Ops::Experts& args);
  void round_inputs(const Ops::Experts& args);
  void gate_and_up(const Ops::Experts& args, bool round);
  void down_and_sum(const Ops::Experts& args);
  void mark_faulty(int64_t slot);

  struct Rows;  // up to 16 rows of one matrix of one expert
  // out[16 * c + r] for the columns [begin, begin + count) of the group, as inputs of gate, up or down.
  void product(const Ops::Experts& args, const Rows& rows, const Group& group, int64_t begin, int64_t count,
               float* out);

  base::WorkerPool& pool_;
  const Kernels& kernels_;
  Scratch<int32_t> order_;   // slots by expert: token * top_k + k
  Scratch<int32_t> counts_;  // by expert
  Scratch<Group> groups_memory_;
  int64_t groups_ = 0;
  Scratch<uint8_t> faulty_;     // by slot
  Scratch<Nvfp4Block> blocks_;  // gate's inputs by slot, up's, down's
  Scratch<float> floats_;       // inputs by token rounded to BF16, then down's by slot
  const float* x_ = nullptr;    // [tokens, hidden]
  Nvfp4Block* gate_blocks_ = nullptr;
  Nvfp4Block* up_blocks_ = nullptr;
  Nvfp4Block* down_blocks_ = nullptr;
  float* down_floats_ = nullptr;
};

}  // namespace tandem::ops::host
