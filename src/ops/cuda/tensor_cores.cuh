// The instructions of the tensor cores and what brings their operands.
//
// Of a product of 16 rows and 8 columns lane 4 g + t (g < 8, t < 4) holds of the sums rows g (c[0], c[1]) and g + 8
// (c[2], c[3]), columns 2 t and 2 t + 1. A register has a pair of 16-bit inputs, the first in its lower half, or four
// 8-bit ones.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

namespace tandem::ops::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// c += a b over 16 inputs in BF16. a0: row g, inputs {2 t, 2 t + 1}; a1: row g + 8, the same; a2 and a3: the two rows,
// inputs {2 t + 8, 2 t + 9}; b0 and b1: column g, the first and the second pair. Which four inputs those are is free as
// long as both sides agree.
__device__ __forceinline__ void multiply_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                              uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four matrices of eight rows of 16 bytes in shared memory; lane l has the address of row l % 8 of matrix l / 8, and
// gets of each matrix the l-th four bytes.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
// The same of the transposed matrices of 8 x 8 16-bit values.
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// Two values as BF16, `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t pair_of(__nv_bfloat16 first, __nv_bfloat16 second) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(first)) | static_cast<uint32_t>(__bfloat16_as_ushort(second)) << 16;
}

}  // namespace tandem::ops::cuda
