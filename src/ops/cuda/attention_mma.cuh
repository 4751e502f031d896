// What attention's kernels ask of the tensor cores and of copies, and where their operands lie in shared memory.
#pragma once

#include <cstdint>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace tandem::ops::cuda {

// A row of a tile in shared memory is a number of 16-byte chunks (a power of two); chunks are exchanged within their
// row so that eight rows' chunks of one column lie in different banks.
template <int kChunks>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  constexpr int rows_a_line = kChunks >= 8 ? 1 : 8 / kChunks;
  constexpr int mask = kChunks >= 8 ? 7 : kChunks - 1;
  return row * kChunks + (chunk ^ ((row / rows_a_line) & mask));
}

// Copies 16 bytes, or writes zeros where not `valid`.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool valid) {
  copy_16_of(to, from, valid ? 16 : 0);
}
__device__ __forceinline__ void copy_8(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0) : "memory");
}

// From memory to the second-level cache; a multiple of 16 bytes at one.
__device__ __forceinline__ void prefetch_bytes(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// c += a b of one m16n8k16 product in BF16. Lane l holds of a the rows l / 4 and l / 4 + 8 at inputs 2 (l % 4) + {0, 1}
// and 8 more; of b column l / 4 at the same inputs; of c rows as of a at columns 2 (l % 4) + {0, 1}.
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 2^x; exactly 1 at 0 and 0 at minus infinity.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tandem::ops::cuda
