// 8-bit keys and values in products of whole numbers: instructions, and how numbers become two codes.
#pragma once

#include <cstdint>
#include <cuda_fp16.h>

namespace tandem::ops::cuda {

// c += a b of one m16n8k32 product of signed 8-bit codes, exactly. Lane l holds of a the rows l / 4 and l / 4 + 8 at
// inputs 4 (l % 4) + {0 … 3}, then 16 more; of b column l / 4 at the same inputs; of c rows as of a at columns
// 2 (l % 4) + {0, 1}.
__device__ __forceinline__ void multiply_codes(int (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// c += a b of one m16n8k16 product in FP16. Lane l holds of a the rows l / 4 and l / 4 + 8 at inputs 2 (l % 4) + {0, 1}
// and 8 more; of b column l / 4 at the same inputs; of c rows as of a at columns 2 (l % 4) + {0, 1}.
__device__ __forceinline__ void multiply_halves(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The even and the odd bytes of four signed codes in FP16, exactly: 0x64 above a byte is 1024 more than it, and 128
// makes a signed code a byte.
struct CodeHalves {
  uint32_t even;
  uint32_t odd;
};
__device__ __forceinline__ CodeHalves codes_to_halves(uint32_t codes) {
  const uint32_t raised = codes ^ 0x80808080u;
  CodeHalves halves;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(halves.even) : "r"(__byte_perm(raised, 0x64646464u, 0x4240)), "r"(0xE480E480u));
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(halves.odd) : "r"(__byte_perm(raised, 0x64646464u, 0x4341)), "r"(0xE480E480u));
  return halves;
}

// Four numbers times a factor, at most kTwoCodesMost in magnitude, to the nearest whole ones: each is 256 high + low.
// Adding 1.5 * 2^23 leaves the whole number in the low bits; 128 more makes the low byte's own range unsigned.
struct TwoCodes {
  uint32_t high;
  uint32_t low;
};
inline constexpr float kTwoCodesMost = 32639.0F;
__device__ __forceinline__ TwoCodes two_codes(const float4& x, float factor) {
  constexpr float whole = 12582912.0F + 128.0F;
  const uint32_t first =
      __byte_perm(__float_as_uint(fmaf(x.x, factor, whole)), __float_as_uint(fmaf(x.y, factor, whole)), 0x5410);
  const uint32_t second =
      __byte_perm(__float_as_uint(fmaf(x.z, factor, whole)), __float_as_uint(fmaf(x.w, factor, whole)), 0x5410);
  return {__byte_perm(first, second, 0x7531), __byte_perm(first, second, 0x6420) ^ 0x80808080u};
}

}  // namespace tandem::ops::cuda
