// The loop of products of experts in BF16: copies of columns and weights into stages of shared memory, and the steps
// that multiply them, with mma.sync or with products of warp groups.
#pragma once

#include <algorithm>

#include "ops/cuda/experts_bf16_readers.cuh"

namespace tandem::ops::cuda::expert::bf16 {

// A unit of weights is needed every kSteps stages; kUnits of them are in shared memory.
template <typename F>
struct Layout {
  static constexpr int kSteps = Reader<F>::kInputs / kStep;
  static constexpr int units(int stages) { return (stages - 1 + kSteps - 1) / kSteps + 1; }
  static constexpr int kUnits = units(kStages);
  static constexpr int kWarpBytes = 2 * Reader<F>::kBytes;  // 32 rows
  static constexpr int kWeightBytes = kWarps * kWarpBytes;
};
template <typename F, bool kGateUp>
inline constexpr int kTiles = kGateUp && std::is_same_v<F, Nvfp4> ? 2 : 1;  // up may have columns of its own
template <typename F>
inline constexpr bool kHasTable = !std::is_same_v<typename F::Codebook, NoCodebook>;
template <typename F>
inline constexpr int kTableBytes = kHasTable<F> ? static_cast<int>(sizeof(typename F::Table)) : 0;
// The table, stages of columns, units of weights; the sums of gate and up afterwards.
template <typename F, bool kGateUp>
constexpr int shared_bytes(int stages) {
  const int bytes =
      kTableBytes<F> + stages * kTiles<F, kGateUp> * kTile + Layout<F>::units(stages) * Layout<F>::kWeightBytes;
  return std::max(bytes, kGateUp ? kInnerBytes : 0);
}

// A lane's part of the copies into shared memory. `columns` has where the group's columns begin, in pieces of 16 bytes.
template <typename F, bool kGateUp>
class Copies {
 public:
  __device__ Copies(const Product& product, const Group& group, const uint32_t* columns, int eights, bool shared,
                    int64_t first_row, uint32_t tiles, uint32_t weights)
      : product_(product),
        columns_(columns + threadIdx.x / 8),
        eights_(eights),
        shared_(shared),
        row_(first_row + (kGateUp ? warp() % 4 : warp()) * 32) {
    const int column = static_cast<int>(threadIdx.x) / 8;
    tiles_ = tiles + static_cast<uint32_t>(column * 128 + ((lane() % 8 ^ column % 8) << 4));
    weights_ = weights + static_cast<uint32_t>(warp() * Layout<F>::kWarpBytes);
    record_ = product.records + group.expert * product.record_bytes;
    const auto units = static_cast<int>(product.inputs / Reader<F>::kInputs);
    steps_ = units * Layout<F>::kSteps;
    second_ = int64_t{units} * Reader<F>::kBytes;
    place();
  }
  __device__ void fetch() {
    if (pass_ < product_.passes) {
      fetch_columns();
      if (step_ % Layout<F>::kSteps == 0) fetch_units();
      stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
      if (++step_ == steps_) {
        step_ = 0;
        ++pass_;
        row_ += kWarps * 32;
        place();
      }
    }
    commit_copies();
  }
  __device__ int steps() const { return steps_; }

 private:
  static constexpr int kPieces = Reader<F>::kBytes / 16;
  static constexpr int kTail = kPieces % 32;
  static constexpr bool kTailsTogether = kTail > 0 && 2 * kTail <= 32;  // those of both units in one copy

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  __device__ void fetch_columns() {
    constexpr int kEach = kThreads / 8;
    const uint32_t to = tiles_ + static_cast<uint32_t>(stage_ * kTiles<F, kGateUp> * kTile);
    const uint32_t piece = static_cast<uint32_t>(step_ * 8 + lane() % 8);
#pragma unroll
    for (int i = 0; i < kColumns / kEach; ++i) {
      if (warp() * 4 + i * kEach >= 8 * eights_) break;
      const uint32_t from = columns_[i * kEach] + piece;
      copy_16(to + static_cast<uint32_t>(i * kEach * 128), reinterpret_cast<const uint4*>(product_.columns[0]) + from);
      if constexpr (kTiles<F, kGateUp> == 2) {
        if (!shared_) {
          copy_16(to + static_cast<uint32_t>(i * kEach * 128 + kTile),
                  reinterpret_cast<const uint4*>(product_.columns[1]) + from);
        }
      }
    }
  }
  __device__ void fetch_units() {
    const uint32_t to = weights_ + static_cast<uint32_t>(unit_ * Layout<F>::kWeightBytes);
#pragma unroll
    for (int first = 0; first < kPieces; first += 32) {
      if (kPieces - first < 32 && (kTailsTogether || lane() >= kPieces - first)) break;
      const uint32_t at = to + static_cast<uint32_t>(Reader<F>::place(first + lane()) * 16);
      copy_16(at, from_ + first * 16);
      copy_16(at + Reader<F>::kBytes, from_ + second_ + first * 16);
    }
    if constexpr (kTailsTogether) {
      if (lane() < 2 * kTail) {
        const int place = lane() / kTail * kPieces + Reader<F>::place(kPieces - kTail + lane() % kTail);
        copy_16(to + static_cast<uint32_t>(place * 16), tail_);
      }
      tail_ += Reader<F>::kBytes;
    }
    from_ += Reader<F>::kBytes;
    unit_ = unit_ + 1 == Layout<F>::kUnits ? 0 : unit_ + 1;
  }
  // Rows behind the end repeat the last ones.
  __device__ void place() {
    const int64_t row = min(row_, product_.rows - 32);
    const std::byte* at = record_ + product_.offsets[kGateUp ? warp() / 4 : 0] + row / kTileRows * second_;
    from_ = at + lane() * 16;
    if constexpr (kTailsTogether) {
      tail_ = at + lane() / kTail % 2 * second_ + (kPieces - kTail + lane() % kTail) * 16;
    }
  }

  const Product& product_;
  const uint32_t* columns_;
  int eights_;
  bool shared_;
  int64_t row_;
  uint32_t tiles_;
  uint32_t weights_;
  const std::byte* record_;
  const std::byte* from_;
  const std::byte* tail_ = nullptr;
  int64_t second_;  // from a unit of 16 rows to the same of the next 16
  int steps_;
  int step_ = 0;
  int pass_ = 0;
  int stage_ = 0;
  int unit_ = 0;
};

// 32 inputs, with mma.sync.
__device__ inline void add_products(Sums& sums, const Operands (&operands)[2], uint32_t tile, int eights) {
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    if (n >= eights) break;
    uint32_t b[4];
    load_matrices(b, tile + static_cast<uint32_t>(n * 1024));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t(&a)[4] = operands[i / 2][i % 2];
      multiply_bf16(sums[i % 2][n], a[0], a[1], a[2], a[3], b[i / 2 * 2], b[i / 2 * 2 + 1]);
    }
  }
}

// What a warp reads of the stages.
template <typename F, bool kGateUp>
struct Stages {
  uint32_t tiles;  // the columns that the warp takes
  const std::byte* weights;
  const typename F::Table& table;
  int stage = 0;
  int unit = 0;
  int part = 0;  // of a unit

  __device__ uint32_t tile() const { return tiles + static_cast<uint32_t>(stage * kTiles<F, kGateUp> * kTile); }
  __device__ const std::byte* units() const { return weights + unit * Layout<F>::kWeightBytes; }
  __device__ void step() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (++part < Layout<F>::kSteps) return;
    part = 0;
    unit = unit + 1 == Layout<F>::kUnits ? 0 : unit + 1;
  }
};

// All steps of a pass with mma.sync.
template <typename F, bool kGateUp>
__device__ inline void add_steps(Sums& sums, Copies<F, kGateUp>& copies, Stages<F, kGateUp>& at, int eights) {
  const Reader<F> reader(at.table);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto place = static_cast<uint32_t>(lane % 8 * 128 + ((lane / 8 ^ lane % 8) << 4));
#pragma unroll 1
  for (int step = 0; step < copies.steps(); ++step) {
    await_copies<kAhead - 1>();
    __syncthreads();  // everyone's copies are here, and everyone is done with the stage before
    copies.fetch();
    const uint32_t tile = at.tile() + place;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const typename Reader<F>::Half half(reader, at.units(), 2 * at.part + h);
      Operands operands[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) half.operands(i / 2, i % 2, operands[i / 2][i % 2]);
      add_products(sums, operands, tile ^ static_cast<uint32_t>(h * 64), eights);
    }
    at.step();
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The same with products of warp groups, 8 * kUsed columns: those of 16 inputs are computed while the
// operands of the next 16 are decoded.
template <typename F, bool kGateUp, int kUsed>
__device__ inline void add_warpgroup_steps(Sums& sums, Copies<F, kGateUp>& copies, Stages<F, kGateUp>& at) {
  const Reader<F> reader(at.table);
  Operands operands[2];
#pragma unroll 1
  for (int step = 0; step < copies.steps(); ++step) {
    await_copies<kAhead - 1>();
    show_copies_to_products();
    __syncthreads();  // everyone's copies are here, and everyone's products are done with the stage before the last
    copies.fetch();
    const uint64_t columns = describe_columns(at.tile());
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const typename Reader<F>::Half half(reader, at.units(), 2 * at.part + h);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        wait_for_products<1>();  // those that read these operands
#pragma unroll
        for (int r = 0; r < 2; ++r) half.operands(s, r, operands[s][r]);
        begin_products();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          multiply_warpgroup<kUsed>(sums[r], operands[s][r], columns + static_cast<uint64_t>(4 * h + 2 * s));
        }
        commit_products();
      }
    }
    at.step();
  }
  wait_for_products<0>();
}
#endif

}  // namespace tandem::ops::cuda::expert::bf16
