// The routed experts of one layer on the processor: every worker streams its own rows of every expert, first of gate
// and up, then of down (docs/architecture.md, "Experts on the processor").
#pragma once

#include <cstdint>

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

  // Ops::experts. `round_inputs`: activations that are not quantised are rounded to BF16.
  void run(const Ops::Experts& args, bool round_inputs);

 private:
  enum Projection : uint8_t { kGate, kUp, kDown };
  // What the products of a matrix take.
  enum class ColumnKind : uint8_t { kFloats, kNvfp4, kInt8 };

  // The columns of the layer that one expert computes: slots [first, first + count).
  struct Group {
    int64_t expert;
    int64_t first;
    int64_t count;
  };
  // The inputs of one projection. NVFP4's depend on the expert's input scale, where it has one, so they stand by slot;
  // others of gate and up by token.
  struct Columns {
    ColumnKind kind = ColumnKind::kFloats;
    ExpertFormat format = ExpertFormat::kBF16;
    bool by_token = false;
    bool dynamic = false;  // NVFP4 without input scales: each column has its own
    int64_t stride = 0;    // bytes
    std::byte* data = nullptr;
    float* scales = nullptr;  // NVFP4: the input scale of each column
  };
  // Up to 16 rows of one matrix, and the rows of which expert's matrix the worker reads after them.
  struct Rows {
    Projection which;
    int64_t begin;
    int64_t count;
    int64_t next_expert;
    Projection next_which;
    int64_t next_begin;
  };

  void make_groups(const Ops::Experts& args);
  void place_columns(const Ops::Experts& args);
  bool shares_inputs(int64_t column) const;
  void cut_inputs(const Ops::Experts& args);
  void run_stages(const Ops::Experts& args, bool round);
  // Ranges of the four stages.
  void make_inputs(const Ops::Experts& args, bool round, int64_t begin, int64_t end);
  void gate_and_up(const Ops::Experts& args, bool round, int64_t begin, int64_t end);
  void make_dynamic_down(const Ops::Experts& args, int64_t begin, int64_t end);
  void down_and_sum(const Ops::Experts& args, int64_t tile_begin, int64_t tile_end);
  static int64_t pieces_of_group(const ExpertTable& table);
  void gate_and_up_rows(const Ops::Experts& args, bool round, int64_t piece, int64_t begin, int64_t end);
  void sum_tiles(const Ops::Experts& args, int64_t tile_begin, int64_t tile_end, int64_t* sums);
  void sum_group(const Ops::Experts& args, int64_t g, int64_t tile_begin, int64_t tile_end, int64_t* sums);
  static const std::byte* tile_of(const ExpertTable& table, int64_t expert, Projection which, int64_t row);
  static const uint16_t* scales_of(const ExpertTable& table, int64_t expert, Projection which, int64_t row);
  // out[16 * c + r] for the columns [begin, begin + count) of the group.
  void product(const Ops::Experts& args, const Rows& rows, const Group& group, int64_t begin, int64_t count,
               float* out);
  void float_rows(ExpertFormat format, const Tile& tile, int64_t rows, int64_t inputs, const float* const* columns,
                  int64_t count, float* out);
  // One column of `count` inputs as the products take it; false where a value is not finite.
  bool make_column(const Columns& columns, const float* x, int64_t count, float input_scale, bool round,
                   std::byte* out) const;
  void mark_faulty(int64_t token);
  int64_t token_of(const Ops::Experts& args, int64_t slot) { return order_.data()[slot] / args.top_k; }

  base::WorkerPool& pool_;
  const Kernels& kernels_;
  Scratch<int32_t> order_;   // slots by expert: token * top_k + k
  Scratch<int32_t> counts_;  // by expert
  Scratch<Group> groups_memory_;
  int64_t groups_ = 0;
  Scratch<uint8_t> faulty_;  // by token
  Scratch<std::byte> columns_memory_;
  Scratch<float> scales_memory_;
  Scratch<float> inner_memory_;  // down's inputs by slot, until they are scaled
  Columns columns_[3];
  // Pieces of the columns of gate and up: columns of gate first, each in so many parts.
  int64_t input_parts_ = 1;
  int64_t gate_columns_ = 0;
  int64_t up_columns_ = 0;
  int32_t inputs_left_ = 0;       // of these pieces; counted down by workers
  Scratch<int32_t> groups_left_;  // by group: see run_stages
};

}  // namespace tandem::ops::host
