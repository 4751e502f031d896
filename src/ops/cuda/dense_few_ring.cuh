// A warp's weights on their way where rows lie one behind the other: a ring of slots in shared memory, which the warp
// fills for itself a few slots ahead (cp.async), so that it waits for nobody. Rows are fetched in pieces of whole
// 128-byte lines; eight lanes have a line.
#pragma once

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/dense_few_formats.cuh"
#include "ops/cuda/dense_few_inputs.cuh"

namespace tandem::ops::cuda::dense {

inline constexpr int kRingSlots = 3;

template <WeightFormat kFormat, int kScales, int kBytes>
struct Ring {
  using F = Format<kFormat, kScales, kBytes>;
  static constexpr int kTileSlots = kWarpUnits * F::kUnitParts / 2;
  static constexpr int kCodes = kTileRows * F::kRowBytes;
  static constexpr int kSlotBytes = (kCodes + kTileRows * 4 * F::kEntries + 127) / 128 * 128;
  static constexpr int kRowPieces = F::kRowBytes / 16;
  static constexpr int kCopyRows = 32 / kRowPieces;      // that the lanes copy at once, 16 bytes each
  static constexpr int kCopies = kTileRows / kCopyRows;  // of a slot
  static_assert(kRowPieces == 8);
};

// `bytes` of 16; the rest becomes zeros.
__device__ inline void copy_sixteen(uint32_t to, const uint8_t* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// `bytes` of four; the rest becomes zeros.
__device__ inline void copy_four(uint32_t to, const uint8_t* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The unit that a slot's first part belongs to, of those of the warp.
template <typename F>
__device__ inline int slot_unit(int slot) {
  return slot * 2 / F::kUnitParts;
}

// Where a lane copies from. Everything that is not there (rows behind the last, units behind the warp's) becomes zeros.
template <WeightFormat kFormat, int kScales, int kBytes>
class Source {
  using R = Ring<kFormat, kScales, kBytes>;
  using F = typename R::F;

 public:
  __device__ Source(const Arguments& p, const Share& share, int lane, int unit, int units)
      : p_(p),
        lane_(lane),
        row_bytes_(p.row_bytes),
        unit_(unit),
        units_(units),
        limit_(share.rows),
        rows_(share.rows),
        first_row_(share.first_row),
        row_(share.first_row) {
    constexpr int kUnitBytes = F::kRowBytes * F::kUnitParts / 2;
    const Weight& w = p.product.w;
    codes_ =
        static_cast<const uint8_t*>(w.data) + share.first_row * p.row_bytes + static_cast<int64_t>(unit) * kUnitBytes;
    copy_row_ = lane / R::kRowPieces;
    codes_ += copy_row_ * p.row_bytes + 16 * (lane % R::kRowPieces);
    size_[0] = units > 0 ? 16 : 0;
    size_[1] = units > 1 ? 16 : 0;
    if constexpr (F::kEntries > 0) {
      scales_ = static_cast<const uint8_t*>(w.scales);
      if constexpr (kFormat != WeightFormat::kFp8Block) scales_ += (share.first_row + lane % 16) * p.row_scales;
    }
  }

  // From the tile before.
  __device__ void go_to(int tile) {
    const int odd = (tile - 1) & 1;
    codes_ += p_.code_steps[odd];
    if constexpr (F::kEntries > 0) scales_ += p_.scale_steps[odd];
    const int row = (p_.product.paired ? tile / 2 : tile) * kTileRows;
    limit_ = rows_ - row;
    if constexpr (kFormat == WeightFormat::kFp8Block) row_ = first_row_ + row;
  }

  // One of the tile's slots, to this address in shared memory.
  __device__ void copy(int slot, uint32_t to) const {
    if (limit_ >= kTileRows) {
      copy_codes<true>(slot, to);
      if constexpr (F::kEntries > 0) copy_scales<true>(slot, to + R::kCodes);
    } else {
      copy_codes<false>(slot, to);
      if constexpr (F::kEntries > 0) copy_scales<false>(slot, to + R::kCodes);
    }
  }

 private:
  // kWhole: all of the tile's rows are there.
  template <bool kWhole>
  __device__ void copy_codes(int slot, uint32_t to) const {
    const uint8_t* from = codes_ + slot * F::kRowBytes;
    // Odd rows of whole lines have their parts exchanged: lanes of two rows then read from all banks.
    to += (lane_ * 16) ^ (lane_ / 8 % 2 * 64);
#pragma unroll
    for (int i = 0; i < R::kCopies; ++i) {
      const int row = copy_row_ + R::kCopyRows * i;
      copy_sixteen(to + R::kCopyRows * F::kRowBytes * i, from + R::kCopyRows * i * row_bytes_,
                   kWhole || row < limit_ ? size_[slot_unit<F>(slot)] : 0);
    }
  }

  template <bool kWhole>
  __device__ void copy_scales(int slot, uint32_t to) const {
    const int row = static_cast<int>(static_cast<uint32_t>(lane_) % 16);
#pragma unroll
    for (int i = 0; i < (16 * F::kEntries + 31) / 32; ++i) {
      const int entry = lane_ / 16 + 2 * i;
      if (entry >= F::kEntries) break;
      const uint8_t* from = scales_ + F::group_of(p_, unit_ + slot_unit<F>(slot), entry) * kBytes;
      if constexpr (kFormat == WeightFormat::kFp8Block) from += (row_ + row) / 128 * p_.row_scales;
      const int before = word_before(from);
      const bool there = slot_unit<F>(slot) < units_ && (kWhole || row < limit_);
      copy_four(to + 4 * (16 * entry + row), from - before, there ? kBytes + before : 0);
    }
  }

  // A scale of two bytes comes with its word, as far as that lies in front of it.
  __device__ static int word_before(const uint8_t* scale) {
    return kBytes == 2 ? static_cast<int>(reinterpret_cast<uintptr_t>(scale) & 2) : 0;
  }

  const Arguments& p_;
  const uint8_t* codes_;
  const uint8_t* scales_ = nullptr;
  int64_t first_row_, row_;
  int lane_;
  uint32_t row_bytes_;
  int unit_, units_;
  int copy_row_;  // of a tile, the first that the lane copies of
  int size_[2];   // of the pieces of the warp's units: 16, or 0 where there is no such unit
  int limit_;     // rows from here on
  int rows_;
};

// What a lane needs of a part of a slot. `row` is the tile's first, of the matrix (for FP8 blocks); `unit` the warp's
// first.
template <WeightFormat kFormat, int kScales, int kBytes>
__device__ inline void read_part(const Arguments& p, int lane, const uint8_t* filled, int slot, int part, int64_t row,
                                 int unit, typename Format<kFormat, kScales, kBytes>::Step& out) {
  using R = Ring<kFormat, kScales, kBytes>;
  using F = typename R::F;
  const int g = lane / 4;
  const int l = lane % 4;
  const uint8_t* scales = filled + R::kCodes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = g * F::kRowBytes + ((16 * l) ^ (g % 2 * 64));
    out.codes[i] = *reinterpret_cast<const uint4*>(filled + (place ^ part * 64) + 8 * F::kRowBytes * i);
    if constexpr (F::kEntries > 0) {
#pragma unroll
      for (int j = 0; j < kScales; ++j) {
        const int entry = part * F::kPartEntries + j;
        uint32_t bits = *reinterpret_cast<const uint32_t*>(scales + 4 * (16 * entry + g + 8 * i));
        if constexpr (kBytes == 2) {  // rows eight apart have their scales in the same half of a word
          const auto own_row = static_cast<uint32_t>(kFormat == WeightFormat::kFp8Block ? row / 128 : g);
          const int group = F::group_of(p, unit + slot_unit<F>(slot), entry);
          if (((own_row * p.row_scales + 2 * static_cast<uint32_t>(group)) & 2) != 0) bits >>= 16;
        }
        out.scales[i][j] = bits;
      }
    }
  }
}

// Multiplies what read_part gave of the tile's part `number`.
template <WeightFormat kFormat, int kScales, int kBytes>
__device__ inline void multiply_part(const Arguments& p, int number,
                                     const typename Format<kFormat, kScales, kBytes>::Step& step,
                                     const uint2 (&inputs)[kWarpUnits * kUnitProducts],
                                     const typename Format<kFormat, kScales, kBytes>::Offsets& offsets,
                                     typename Format<kFormat, kScales, kBytes>::Sums& sums) {
  using F = Format<kFormat, kScales, kBytes>;
  const uint2* b = inputs + number * (kUnitProducts / F::kUnitParts);
  F::multiply(p, step, b, offsets, number / F::kUnitParts, sums.units[number / F::kUnitParts]);
}

}  // namespace tandem::ops::cuda::dense
