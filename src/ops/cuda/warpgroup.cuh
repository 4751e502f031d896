// Products of warp groups on cards that have them (compute capability 9.0): four warps multiply 64 rows, 16 to a warp,
// whose weights they hold in registers as mma.sync takes them, with columns in shared memory. They are computed while
// the warps go on, and read the columns without the warps' loads.
#pragma once

#include <cstdint>

namespace tandem::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kWarpgroupProducts = true;
#else
inline constexpr bool kWarpgroupProducts = false;
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Columns of 128 bytes, whose eight places are permuted by the column's lowest three bits, from a multiple of 1024
// bytes on; 32 bytes further are the next 16 inputs.
__device__ inline uint64_t describe_columns(uint32_t shared) {
  constexpr uint64_t kEightColumns = 1024 / 16;
  return (shared & 0x3ffffU) >> 4 | uint64_t{1} << 16 | kEightColumns << 32 | uint64_t{1} << 62;
}
// What threads copied into shared memory can be seen by the products after a barrier.
__device__ inline void show_copies_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Before products of registers that were written.
__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// sums += weights * columns, of 8 * kEights columns; sums are as those of mma.sync for eight columns each.
#define TANDEM_SUMS(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define TANDEM_PRODUCT(columns, list, a0, a1, a2, a3, b)                                                             \
  "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" list \
  "}, {%" a0 ",%" a1 ",%" a2 ",%" a3 "}, %" b ", add, 1, 1, 0;\n}\n"
#define TANDEM_0_7 "%0,%1,%2,%3,%4,%5,%6,%7"
#define TANDEM_8_15 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define TANDEM_16_19 ",%16,%17,%18,%19"
#define TANDEM_20_23 ",%20,%21,%22,%23"
#define TANDEM_24_27 ",%24,%25,%26,%27"
#define TANDEM_28_31 ",%28,%29,%30,%31"
template <int kEights, int kMost>
__device__ inline void multiply_warpgroup(float (&d)[kMost][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kEights == 2 || (kEights >= 4 && kEights <= 8));
  if constexpr (kEights == 2) {
    asm volatile(TANDEM_PRODUCT("16", TANDEM_0_7, "8", "9", "10", "11", "12")
                 : TANDEM_SUMS(0), TANDEM_SUMS(1)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (kEights == 4) {
    asm volatile(TANDEM_PRODUCT("32", TANDEM_0_7 TANDEM_8_15, "16", "17", "18", "19", "20")
                 : TANDEM_SUMS(0), TANDEM_SUMS(1), TANDEM_SUMS(2), TANDEM_SUMS(3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (kEights == 5) {
    asm volatile(TANDEM_PRODUCT("40", TANDEM_0_7 TANDEM_8_15 TANDEM_16_19, "20", "21", "22", "23", "24")
                 : TANDEM_SUMS(0), TANDEM_SUMS(1), TANDEM_SUMS(2), TANDEM_SUMS(3), TANDEM_SUMS(4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (kEights == 6) {
    asm volatile(TANDEM_PRODUCT("48", TANDEM_0_7 TANDEM_8_15 TANDEM_16_19 TANDEM_20_23, "24", "25", "26", "27", "28")
                 : TANDEM_SUMS(0), TANDEM_SUMS(1), TANDEM_SUMS(2), TANDEM_SUMS(3), TANDEM_SUMS(4), TANDEM_SUMS(5)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (kEights == 7) {
    asm volatile(TANDEM_PRODUCT("56", TANDEM_0_7 TANDEM_8_15 TANDEM_16_19 TANDEM_20_23 TANDEM_24_27, "28", "29", "30",
                                "31", "32")
                 : TANDEM_SUMS(0), TANDEM_SUMS(1), TANDEM_SUMS(2), TANDEM_SUMS(3), TANDEM_SUMS(4), TANDEM_SUMS(5),
                   TANDEM_SUMS(6)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile(TANDEM_PRODUCT("64", TANDEM_0_7 TANDEM_8_15 TANDEM_16_19 TANDEM_20_23 TANDEM_24_27 TANDEM_28_31, "32",
                                "33", "34", "35", "36")
                 : TANDEM_SUMS(0), TANDEM_SUMS(1), TANDEM_SUMS(2), TANDEM_SUMS(3), TANDEM_SUMS(4), TANDEM_SUMS(5),
                   TANDEM_SUMS(6), TANDEM_SUMS(7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}
#undef TANDEM_SUMS
#undef TANDEM_PRODUCT
#undef TANDEM_0_7
#undef TANDEM_8_15
#undef TANDEM_16_19
#undef TANDEM_20_23
#undef TANDEM_24_27
#undef TANDEM_28_31

#endif

}  // namespace tandem::ops::cuda
