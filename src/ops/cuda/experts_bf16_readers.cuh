// How warps of products of experts in BF16 read each format, and make operands of tensor cores of it.
#pragma once

#include "ops/cuda/dense_mma.cuh"
#include "ops/cuda/experts_bf16_columns.cuh"

namespace tandem::ops::cuda::expert::bf16 {

__device__ inline void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}
__device__ inline uint4 load_shared(uint32_t from) {
  uint4 out;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(from));
  return out;
}

// A warp's sums of 32 rows: [rows 4 g and 4 g + 1, or the next two][eight columns][rows, columns as mma gives them].
using Sums = float[2][kEights][4];
// Its operands of 16 inputs: [rows 4 g and 4 g + 1, or the next two].
using Operands = uint32_t[2][4];

// How warps read a format: units of 16 rows, which hold kInputs inputs and lie in shared memory as copy() puts them.
template <typename F>
struct Reader;

template <>
struct Reader<Nvfp4> {
  static constexpr int kInputs = 64;
  static constexpr int kBytes = 576;
  // Sixteen bytes are a word of four rows; in words whose second bit is set, rows 0 to 7 and 8 to 15 change places, so
  // that eight lanes that load four words of eight rows meet no bank twice.
  __device__ static int place(int piece) { return piece < 32 ? piece ^ (piece >> 3 & 1) << 1 : piece; }

  uint32_t codes_at;
  uint32_t scales_at;
  uint32_t choice;  // of scales of two rows, those of the lane's block
  __device__ explicit Reader(const Nvfp4::Table&) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    codes_at = static_cast<uint32_t>(g / 4 * kBytes + ((t * 4 + g % 4) ^ (t & 2)) * 16);
    scales_at = static_cast<uint32_t>(g / 4 * kBytes + 512 + g % 4 * 16);
    choice = static_cast<uint32_t>(t / 2) * 0x11U + 0x40U;
  }
  // Half h of the lane's four rows, in one of two units.
  struct Half {
    uint32_t words[4];
    uint32_t factors[4];  // pairs of the same scale

    __device__ Half(const Reader& reader, const std::byte* unit, int h) {
      const auto units = static_cast<uint32_t>(__cvta_generic_to_shared(unit));
      const uint4 codes = load_shared(units + reader.codes_at + static_cast<uint32_t>(h * 256));
      const uint4 scales = load_shared(units + reader.scales_at);
      words[0] = codes.x, words[1] = codes.y, words[2] = codes.z, words[3] = codes.w;
      const uint32_t choice = reader.choice + static_cast<uint32_t>(h) * 0x22U;
      const uint32_t first = dense::nvfp4_scales(__byte_perm(scales.x, scales.y, choice));
      const uint32_t second = dense::nvfp4_scales(__byte_perm(scales.z, scales.w, choice));
      factors[0] = __byte_perm(first, 0, 0x1010);
      factors[1] = __byte_perm(first, 0, 0x3232);
      factors[2] = __byte_perm(second, 0, 0x1010);
      factors[3] = __byte_perm(second, 0, 0x3232);
    }
    // Of the s-th 16 inputs, rows 2 r and 2 r + 1.
    __device__ void operands(int s, int r, uint32_t (&a)[4]) const {
      const uint32_t first = words[2 * r] >> 8 * s;
      const uint32_t second = words[2 * r + 1] >> 8 * s;
      a[0] = dense::multiply_pairs(dense::e2m1_pair<0>(first), factors[2 * r]);
      a[1] = dense::multiply_pairs(dense::e2m1_pair<0>(second), factors[2 * r + 1]);
      a[2] = dense::multiply_pairs(dense::e2m1_pair<1>(first), factors[2 * r]);
      a[3] = dense::multiply_pairs(dense::e2m1_pair<1>(second), factors[2 * r + 1]);
    }
  };
};

// GGUF's block formats: weights are decoded to bytes, which BF16 holds, and multiplied by the rounded scale of their
// block.
template <typename F>
struct Reader {
  static constexpr int kInputs = F::kInputs;
  static constexpr int kBytes = F::kBytes;
  static constexpr int kScales = std::is_same_v<F, Iq2s> ? 2 : 1;  // of a block of 32 inputs
  __device__ static int place(int piece) { return piece; }

  const typename F::Table& table;
  int unit_at;
  int row;
  __device__ explicit Reader(const typename F::Table& entries) : table(entries) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    unit_at = g / 4 * kBytes;
    row = g % 4 * 4;
  }
  struct Half {
    const Reader& reader;
    const std::byte* unit;
    int block;
    uint32_t factors[4][kScales];

    __device__ Half(const Reader& from, const std::byte* units, int h)
        : reader(from), unit(units + from.unit_at), block(h) {
#pragma unroll
      for (int i = 0; i < 4 * kScales; ++i) {
        const int at = reader.row + i / kScales;
        const float factor =
            F::factor(unit, at, block, nullptr) * static_cast<float>(F::scale(unit, at, block, i % kScales));
        const __nv_bfloat162 both = __float2bfloat162_rn(factor);
        factors[i / kScales][i % kScales] = reinterpret_cast<const uint32_t&>(both);
      }
    }
    __device__ void operands(int s, int r, uint32_t (&a)[4]) const {
      const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t bytes = F::word(unit, reader.row + 2 * r + i, block, s, lane, reader.table);
        const uint32_t factor = factors[2 * r + i][s % kScales];
        a[i] = dense::multiply_pairs(byte_pair(bytes), factor);
        a[2 + i] = dense::multiply_pairs(byte_pair(bytes >> 8), factor);
      }
    }

   private:
    // The lower byte of each half, with its sign: 128 + its lower seven bits, less 128 or 256.
    __device__ static uint32_t byte_pair(uint32_t bytes) {
      return dense::subtract_pairs(dense::put_under(bytes, 0x007f007f, dense::kHundredTwentyEight),
                                   dense::put_under(bytes, 0x00800080, dense::kHundredTwentyEight));
    }
  };
};

}  // namespace tandem::ops::cuda::expert::bf16
