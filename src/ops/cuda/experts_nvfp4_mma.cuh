// The canonical NVFP4 product of 16 rows x 128 inputs (two units) with one or two columns on the tensor cores, exactly.
//
// An instruction multiplies 16 rows x 32 inputs, two blocks of 16, with eight columns. Sums must not cross blocks, for
// each has its scale, so the eight stand for (block, column): such a column has the inputs of its own block, and zeros
// in the other's places. With one column, four instructions fill the eight sums of a row with its eight blocks.
//
// Of the instruction's operands lane 4 g + l has rows g and g + 8, which are rows 2 g and 2 g + 1 of the tile, with
// word l of the four that the two blocks have in a row; of the inputs column g; and of the sums columns 2 l and 2 l
// + 1.
#pragma once

#include "ops/cuda/experts_nvfp4.cuh"

namespace tandem::ops::cuda::expert {

inline constexpr int kPartUnits = 2;  // that are multiplied at once
inline constexpr int kPartBytes = kPartUnits * kNvfp4UnitBytes;
inline constexpr int kPartColumnBytes = kPartUnits * static_cast<int>(sizeof(Nvfp4Inputs));

__device__ inline void multiply_bytes(int (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same, of which nothing came before.
__device__ inline void multiply_first_bytes(int (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}

// One instruction, where the compiler would take several once it has widened a factor.
__device__ inline void add_product(int64_t& sum, int a, int b) {
  asm("mad.wide.s32 %0, %1, %2, %0;" : "+l"(sum) : "r"(a), "r"(b));
}

// Where a lane finds its columns: the one whose inputs it brings, and those of its sums.
template <int C>
struct ColumnPlaces {
  const std::byte* inputs;
  const std::byte* scales[C];

  // place(c) is where column c begins, of 0 to C - 1.
  template <typename Place>
  __device__ ColumnPlaces(int lane, const Place& place) {
    inputs = place(lane / 4 % C);
#pragma unroll
    for (int c = 0; c < C; ++c) scales[c] = place(c);
  }
};

// The inputs of a part as the instructions take them.
template <int C>
struct PartInputs {
  uint32_t bytes[4][2];  // of each instruction
  int32_t t[C][2];       // T' of the sums

  // `at`: bytes from the columns' beginnings to the part.
  __device__ void load(const ColumnPlaces<C>& places, int at, int lane) {
    const int g = lane / 4;
    const int l = lane % 4;
#pragma unroll
    for (int f = 0; f < C; ++f) {
      const int block = f * (8 / C) + g / C;  // of the part's eight, that this lane's inputs belong to
      const uint2 x = *reinterpret_cast<const uint2*>(places.inputs + at + block / 4 * sizeof(Nvfp4Inputs) +
                                                      block % 4 * 16 + ((l ^ block) & 1) * 8);
#pragma unroll
      for (int i = f * 4 / C; i < (f + 1) * 4 / C; ++i) {
        const bool own = block == 2 * i + l / 2;
        bytes[i][0] = own ? x.x : 0;
        bytes[i][1] = own ? x.y : 0;
      }
      if constexpr (C == 1) {
        const int2 two =
            *reinterpret_cast<const int2*>(places.scales[0] + at + l / 2 * sizeof(Nvfp4Inputs) + 64 + l % 2 * 8);
        t[0][0] = two.x;
        t[0][1] = two.y;
      } else {
        const int of_sums = f * (8 / C) + 2 * l / C;
        const int from = at + of_sums / 4 * static_cast<int>(sizeof(Nvfp4Inputs)) + 64 + of_sums % 4 * 4;
        t[f][0] = *reinterpret_cast<const int32_t*>(places.scales[0] + from);
        t[f][1] = *reinterpret_cast<const int32_t*>(places.scales[1] + from);
      }
    }
  }
};

// What a lane has of the sums R of a tile's rows 2 g and 2 g + 1, of C columns.
template <int C>
struct TileSums {
  int64_t rows[2][C];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 2 * C; ++i) rows[i / C][i % C] = 0;
  }
  // Of the last part of an odd number of units the second is anything, and the inputs against it are zeros.
  __device__ void add_part(const Nvfp4Tables& tables, const std::byte* units, const PartInputs<C>& inputs, int lane) {
    const int g = lane / 4;
    const int l = lane % 4;
#pragma unroll
    for (int f = 0; f < C; ++f) {
      int sums[4];
#pragma unroll
      for (int i = f * 4 / C; i < (f + 1) * 4 / C; ++i) {
        const uint2 words =
            *reinterpret_cast<const uint2*>(units + i / 2 * kNvfp4UnitBytes + (i % 2 * 4 + l) * 64 + g * 8);
        const Nvfp4Bytes first = decode_nvfp4(tables, words.x);
        const Nvfp4Bytes second = decode_nvfp4(tables, words.y);
        const uint32_t twice[4] = {first.twice_positive[0], second.twice_positive[0], first.twice_positive[1],
                                   second.twice_positive[1]};
        const uint32_t negated[4] = {first.negated[0], second.negated[0], first.negated[1], second.negated[1]};
        if (i == f * 4 / C) {
          multiply_first_bytes(sums, twice, inputs.bytes[i]);
        } else {
          multiply_bytes(sums, twice, inputs.bytes[i]);
        }
        multiply_bytes(sums, negated, inputs.bytes[i]);
      }
      const int block = C == 1 ? 2 * l : f * (8 / C) + 2 * l / C;  // of sums[0]
      const uint2 codes = *reinterpret_cast<const uint2*>(units + block / 4 * kNvfp4UnitBytes + 512 + g * 8);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t word = r == 0 ? codes.x : codes.y;
        int scale = scale_of(word, block % 4);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (C == 1 && e == 1) scale = scale_of(word, block % 4 + 1);
          add_product(rows[r][C == 1 ? 0 : e], sums[2 * r + e] * scale, inputs.t[f][e]);
        }
      }
    }
  }
  // Adds the sums over the lanes: add(column, row, sum), once for each.
  template <typename Add>
  __device__ void gather(int lane, const Add& add) {
    const int g = lane / 4;
    const int l = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < C; ++e) {
        int64_t sum = rows[r][e];
        sum += __shfl_xor_sync(kWholeWarp, sum, 1);
        sum += __shfl_xor_sync(kWholeWarp, sum, 2);
        if (l == 2 * r + e) add(e, 2 * g + r, sum);
      }
    }
  }

 private:
  // S of block b, whose code is byte b of the word.
  __device__ static int scale_of(uint32_t word, int b) {
    return e4m3_times_512(__funnelshift_l(word, word, 20 - 8 * b) & 0x07f00000U);
  }
};

}  // namespace tandem::ops::cuda::expert
