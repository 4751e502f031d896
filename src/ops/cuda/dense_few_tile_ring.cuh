// A block's weights in lanes' order on their way: a ring of slots in shared memory, which one warp fills for all
// others. A slot has a tile of the block's units; its codes are one run of memory, as are its scales
// (numeric/lane_tiles.h), and each warp has two units' tiles side by side.
#pragma once

#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/byte_barrier.cuh"
#include "ops/cuda/dense_few_formats.cuh"
#include "ops/cuda/dense_few_nvfp4.cuh"

namespace tandem::ops::cuda::dense {

inline constexpr int kMostSlots = 4;
// Of a slot two barriers: that all of it has arrived, and that all warps have left it. One more is for sums.
inline constexpr int kSlotBarrierBytes = 16;
inline constexpr int kRingBarriers = 128;
static_assert(kSlotBarrierBytes * kMostSlots + 8 <= kRingBarriers);

template <WeightFormat kFormat, int kScales, int kBytes>
struct TileRing {
  using F = Format<kFormat, kScales, kBytes>;
  static constexpr bool kNvfp4 = kFormat == WeightFormat::kNvfp4;
  static constexpr int kRow = F::kRowBytes / 2;  // bytes of a unit's row
  static constexpr int kUnitCodes = kTileRows * kRow;
  static constexpr int kWarpCodes = kWarpUnits * kUnitCodes;
  static constexpr int kGroupScales = kTileRows * (kNvfp4 ? 8 : kBytes);  // of a unit of NVFP4, of a group of integers
  static constexpr int kUnitGroups = kNvfp4 ? 1 : kScales;                // at most

  __host__ __device__ static constexpr int codes_bytes(int warps) { return warps * kWarpCodes; }
  __host__ __device__ static constexpr int scales_bytes(int warps) {
    return warps * kWarpUnits * kUnitGroups * kGroupScales;
  }
  __host__ __device__ static constexpr int slot_bytes(int warps) {
    return (codes_bytes(warps) + scales_bytes(warps) + 127) / 128 * 128;
  }
  // Group `entry` of a matrix, counted from a unit's first.
  __device__ static int group_of(const Arguments& p, int unit, int entry) {
    if constexpr (kNvfp4) {
      return unit + entry;
    } else {
      return F::group_of(p, unit, entry);
    }
  }
};

// Where the block's slots come from, one after the other: the tiles of all passes.
template <WeightFormat kFormat, int kScales, int kBytes>
class TileSource {
  using R = TileRing<kFormat, kScales, kBytes>;

 public:
  __device__ TileSource(const Arguments& p, const Share& share, int lane) : p_(p), share_(share), lane_(lane) {
    begin();
  }

  __device__ bool ends() const { return pass_ == p_.cut.passes; }

  // Asks for the next slot.
  __device__ void copy(uint32_t to, uint32_t arrived) {
    const int most = p_.cut.warps * kWarpUnits;
    const int unit = share_.first_unit + pass_ * most;
    const int left = share_.end_unit - unit;
    const int units = left < 0 ? 0 : left < most ? left : most;
    const int first = R::group_of(p_, unit, 0);
    const int groups = units == 0 ? 0 : R::group_of(p_, unit + units - 1, R::kUnitGroups - 1) + 1 - first;
    if (lane_ == 0) {
      expect_bytes(arrived, units * R::kUnitCodes + groups * R::kGroupScales);
      if (units > 0) {
        copy_bulk(to, codes_ + unit * R::kUnitCodes, units * R::kUnitCodes, arrived);
        to += R::codes_bytes(p_.cut.warps);
        copy_bulk(to, scales_ + first * R::kGroupScales, groups * R::kGroupScales, arrived);
      }
    }
    __syncwarp();
    codes_ += p_.code_steps[tile_ & 1];
    scales_ += p_.scale_steps[tile_ & 1];
    if (++tile_ < share_.tiles) return;
    ++pass_;
    begin();
  }

 private:
  __device__ void begin() {
    tile_ = 0;
    codes_ = static_cast<const uint8_t*>(p_.product.w.data) + share_.first_row * p_.row_bytes;
    scales_ = static_cast<const uint8_t*>(p_.product.w.scales) + share_.first_row * p_.row_scales;
  }

  const Arguments& p_;
  const Share& share_;
  const uint8_t* codes_ = nullptr;
  const uint8_t* scales_ = nullptr;
  int lane_;
  int pass_ = 0, tile_ = 0;
};

// Where a lane reads in a slot. In this pass the block's first unit is `first` and the warp's `unit`.
template <WeightFormat kFormat, int kScales, int kBytes>
class TileReader {
  using R = TileRing<kFormat, kScales, kBytes>;
  using F = typename R::F;

 public:
  __device__ TileReader(const Arguments& p, int warp, int lane, int first, int unit) : p_(p), unit_(unit) {
    const int g = static_cast<int>(static_cast<uint32_t>(lane) / 4);
    const int l = static_cast<int>(static_cast<uint32_t>(lane) % 4);
    codes_ = warp * R::kWarpCodes + g * R::kRow + (R::kRow == 64 ? 16 : 8) * l;
    behind_ = 32 - 4 * l;
    scales_ = R::codes_bytes(p.cut.warps);
    scales_ += (R::group_of(p, unit, 0) - R::group_of(p, first, 0)) * R::kGroupScales + g * (R::kGroupScales / 16);
    if constexpr (R::kNvfp4) scales_ += F::scale_offset(l);
  }

  // What the lane needs of a unit of the slot at `filled`.
  __device__ void read(const uint8_t* filled, int number, typename F::Step& out) const {
    const uint8_t* codes = filled + codes_ + number * R::kUnitCodes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint8_t* from = codes + i * 8 * R::kRow;
      if constexpr (R::kRow == 64) {
        out.codes[i] = *reinterpret_cast<const uint4*>(from);
      } else {  // three bits
        const uint2 low = *reinterpret_cast<const uint2*>(from);
        out.codes[i] = make_uint4(low.x, low.y, *reinterpret_cast<const uint32_t*>(from + behind_), 0);
      }
    }
    const uint8_t* scales = filled + scales_;
    if constexpr (R::kNvfp4) {
      out.scales[0] = scales + number * R::kGroupScales;
      out.scales[1] = out.scales[0] + R::kGroupScales / 2;
    } else {
#pragma unroll
      for (int j = 0; j < kScales; ++j) {
        const int entry = number * kScales + j;
        const uint8_t* scale = scales;
        if (entry > 0) scale += (R::group_of(p_, unit_, entry) - R::group_of(p_, unit_, 0)) * R::kGroupScales;
        out.scales[0][j] = bits(scale);
        out.scales[1][j] = bits(scale + R::kGroupScales / 2);
      }
    }
  }

 private:
  __device__ static uint32_t bits(const uint8_t* scale) {
    if constexpr (kBytes == 2) return *reinterpret_cast<const uint16_t*>(scale);
    return *reinterpret_cast<const uint32_t*>(scale);
  }

  const Arguments& p_;
  int unit_, codes_, behind_, scales_;
};

// Multiplies the warp's two units of a tile.
template <WeightFormat kFormat, int kScales, int kBytes>
__device__ inline void multiply_tile(const Arguments& p,
                                     const typename Format<kFormat, kScales, kBytes>::Step (&units)[kWarpUnits],
                                     const uint2 (&inputs)[kWarpUnits * kUnitProducts],
                                     const typename Format<kFormat, kScales, kBytes>::Offsets& offsets,
                                     typename Format<kFormat, kScales, kBytes>::Sums& sums) {
  using F = Format<kFormat, kScales, kBytes>;
  if constexpr (kFormat == WeightFormat::kNvfp4 && kScales == 3) {
    F::multiply_tile(units, inputs, sums);
  } else {
#pragma unroll
    for (int i = 0; i < kWarpUnits; ++i) {
      const uint2* b = inputs + i * kUnitProducts;
      if constexpr (kFormat == WeightFormat::kNvfp4) {
        F::multiply(units[i], b, i == 0, sums);
      } else {
        F::multiply(p, units[i], b, offsets, i, sums.units[i]);
      }
    }
  }
}

}  // namespace tandem::ops::cuda::dense
