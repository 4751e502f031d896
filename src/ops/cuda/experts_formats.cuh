// How the products read the formats of a record's units (docs/artifact.md, numeric/block_units.h, numeric/fp8_units.h).
//
// Two lanes share a row of a tile: lane 16 h + r has half h of each block of 32 inputs of row r, four words of bytes in
// the format's order of inputs; word() is one of these alone. A weight is factor * scale * byte. FP8 is apart: its
// integers need 18 bits.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/experts_parts.cuh"

namespace tandem::ops::cuda::expert {

// The codebooks as their launches carry them: digits of 2 or 3 bits, by code (numeric/iquant_codes.h).
struct NoCodebook {};
struct Iq2sCodebook {
  uint16_t words[1024];
};
struct Iq3sCodebook {
  uint16_t words[512];
};
struct Iq3xxsCodebook {
  uint16_t words[256];
};

__device__ inline uint32_t word_at(const std::byte* unit, int w, int row) {
  return reinterpret_cast<const uint32_t*>(unit)[w * kTileRows + row];
}
__device__ inline float half_at(const std::byte* unit, int words, int b, int row) {
  return __half2float(reinterpret_cast<const __half*>(unit + words * 64)[b * kTileRows + row]);
}

// Four digits of kBits to the bytes that they number.
template <int kBits>
__device__ inline uint32_t spread_digits(uint32_t word, uint32_t low, uint32_t high) {
  constexpr uint32_t kMask = (1U << kBits) - 1;
  const uint32_t selector = (word & kMask) | (word >> kBits & kMask) << 4 | (word >> 2 * kBits & kMask) << 8 |
                            (word >> 3 * kBits & kMask) << 12;
  return permute_bytes(low, high, selector);
}

// 0xFF in byte k where `bits` has bit b_k; `places` has 1 << b_k in byte k.
__device__ inline uint32_t masks_of_bits(uint32_t byte, uint32_t places) {
  const uint32_t set = permute_bytes(byte, 0, 0) & places;
  return byte_masks(set + (0x80808080U - places));
}

struct Iq2s {
  static constexpr int kInputs = 256, kBytes = 1312;
  using Codebook = Iq2sCodebook;
  using Table = uint2[1024];
  __device__ static void make_entry(const Codebook& book, int i, Table& table) {
    const uint32_t word = book.words[i];
    table[i] = {spread_digits<2>(word, 0x002b1908, 0), spread_digits<2>(word >> 8, 0x002b1908, 0)};
  }
  __device__ static void weights(const std::byte* unit, int row, int b, int half, const Table& table,
                                 uint32_t (&w)[4]) {
    const uint32_t codes = word_at(unit, b, row) >> 16 * half;
    const uint32_t signs = word_at(unit, 8 + b, row);
    const uint32_t high = word_at(unit, 16 + b / 4, row) >> (16 * half + 2 * (b % 4));
    const uint32_t places = half == 0 ? 0x80400804U : 0x20100201U;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint2 entry = table[(codes >> 8 * j & 255) | (high >> 8 * j & 3) << 8];
      const uint32_t first = signs >> (16 * half + 8 * j);
      const uint32_t second = signs >> (16 * (1 - half) + 8 * j);
      w[2 * j] = negate_bytes(entry.x, masks_of_bits(first, places));
      w[2 * j + 1] = negate_bytes(entry.y, masks_of_bits(second, places));
    }
  }
  __device__ static uint32_t word(const std::byte* unit, int row, int b, int half, int k, const Table& table) {
    const int j = k / 2;
    const uint32_t code = word_at(unit, b, row) >> (16 * half + 8 * j) & 255;
    const uint32_t high = word_at(unit, 16 + b / 4, row) >> (16 * half + 8 * j + 2 * (b % 4)) & 3;
    const uint32_t signs = word_at(unit, 8 + b, row) >> (16 * (half ^ (k & 1)) + 8 * j);
    const auto* words = reinterpret_cast<const uint32_t*>(&table[code | high << 8]);
    return negate_bytes(words[k & 1], masks_of_bits(signs, half == 0 ? 0x80400804U : 0x20100201U));
  }
  __device__ static int scale(const std::byte* unit, int row, int b, int half) {
    return static_cast<int>(word_at(unit, 18 + b / 4, row) >> (8 * (b % 4) + 4 * half) & 15) * 2 + 1;
  }
  __device__ static float factor(const std::byte* unit, int row, int, const uint16_t*) {
    return half_at(unit, 20, 0, row) * 0.125F;
  }
};

struct Iq3s {
  static constexpr int kInputs = 256, kBytes = 1760;
  using Codebook = Iq3sCodebook;
  using Table = uint32_t[512];
  __device__ static void make_entry(const Codebook& book, int i, Table& table) {
    table[i] = spread_digits<3>(book.words[i], 0x07050301, 0x0f0d0b09);
  }
  __device__ static void weights(const std::byte* unit, int row, int b, int half, const Table& table,
                                 uint32_t (&w)[4]) {
    const uint32_t codes = word_at(unit, 2 * b + half, row);
    const uint32_t high = word_at(unit, 16 + b / 4, row) >> (2 * (b % 4) + half);
    const uint32_t signs = word_at(unit, 18 + b, row);
    const uint32_t places = half == 0 ? 0x20800208U : 0x10400104U;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t entry = table[(codes >> 8 * j & 255) | (high >> 8 * j & 1) << 8];
      w[j] = negate_bytes(entry, masks_of_bits(signs >> 8 * j, places));
    }
  }
  __device__ static uint32_t word(const std::byte* unit, int row, int b, int half, int k, const Table& table) {
    const uint32_t code = word_at(unit, 2 * b + half, row) >> 8 * k & 255;
    const uint32_t high = word_at(unit, 16 + b / 4, row) >> (8 * k + 2 * (b % 4) + half) & 1;
    const uint32_t signs = word_at(unit, 18 + b, row) >> 8 * k;
    return negate_bytes(table[code | high << 8], masks_of_bits(signs, half == 0 ? 0x20800208U : 0x10400104U));
  }
  __device__ static int scale(const std::byte* unit, int row, int b, int) {
    return static_cast<int>(word_at(unit, 26, row) >> (4 * b) & 15) * 2 + 1;
  }
  __device__ static float factor(const std::byte* unit, int row, int, const uint16_t*) {
    return half_at(unit, 27, 0, row);
  }
};

struct Iq3xxs {
  static constexpr int kInputs = 256, kBytes = 1568;
  using Codebook = Iq3xxsCodebook;
  using Table = uint32_t[256];
  __device__ static void make_entry(const Codebook& book, int i, Table& table) {
    table[i] = spread_digits<3>(book.words[i], 0x1c140c04, 0x3e342c24);
  }
  __device__ static void weights(const std::byte* unit, int row, int b, int half, const Table& table,
                                 uint32_t (&w)[4]) {
    const uint32_t codes = word_at(unit, 2 * b + half, row);
    const uint32_t signs = word_at(unit, 16 + b, row) >> 14 * half;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t seven = signs >> 7 * (j / 2) & 127;
      const uint32_t eight = seven | static_cast<uint32_t>(__popc(seven)) << 7;
      w[j] = negate_bytes(table[codes >> 8 * j & 255], masks_of_bits(eight, j % 2 == 0 ? 0x08040201U : 0x80402010U));
    }
  }
  __device__ static uint32_t word(const std::byte* unit, int row, int b, int half, int k, const Table& table) {
    const uint32_t code = word_at(unit, 2 * b + half, row) >> 8 * k & 255;
    const uint32_t seven = word_at(unit, 16 + b, row) >> (14 * half + 7 * (k / 2)) & 127;
    const uint32_t eight = seven | static_cast<uint32_t>(__popc(seven)) << 7;
    return negate_bytes(table[code], masks_of_bits(eight, k % 2 == 0 ? 0x08040201U : 0x80402010U));
  }
  __device__ static int scale(const std::byte* unit, int row, int b, int) {
    return static_cast<int>(word_at(unit, 16 + b, row) >> 28) * 2 + 1;
  }
  __device__ static float factor(const std::byte* unit, int row, int, const uint16_t*) {
    return half_at(unit, 24, 0, row) * 0.25F;
  }
};

// The steps of IQ4_NL of the four codes in the lower half.
__device__ inline uint32_t iq4_steps(uint32_t codes) {
  const uint32_t index = codes & 0x7777U;
  const uint32_t choice = (codes & 0x8888U) >> 1 | 0x3210U;
  const uint32_t low = permute_bytes(0xbfad9881U, 0xf6eaddcfU, index);
  const uint32_t high = permute_bytes(0x26190d01U, 0x71594535U, index);
  return permute_bytes(low, high, choice);
}
// Of eight, in their order.
__device__ inline void iq4_steps(uint32_t codes, uint32_t& first, uint32_t& second) {
  first = iq4_steps(codes);
  second = iq4_steps(codes >> 16);
}

struct Iq4nl {
  static constexpr int kInputs = 64, kBytes = 576;
  using Codebook = NoCodebook;
  using Table = uint32_t[1];
  __device__ static void make_entry(const Codebook&, int, Table&) {}
  __device__ static void weights(const std::byte* unit, int row, int b, int half, const Table&, uint32_t (&w)[4]) {
    iq4_steps(word_at(unit, 4 * b + 2 * half, row), w[0], w[1]);
    iq4_steps(word_at(unit, 4 * b + 2 * half + 1, row), w[2], w[3]);
  }
  __device__ static uint32_t word(const std::byte* unit, int row, int b, int half, int k, const Table&) {
    return iq4_steps(word_at(unit, 4 * b + 2 * half + k / 2, row) >> 16 * (k % 2));
  }
  __device__ static int scale(const std::byte*, int, int, int) { return 1; }
  __device__ static float factor(const std::byte* unit, int row, int b, const uint16_t*) {
    return half_at(unit, 8, b, row);
  }
};

struct Iq4xs {
  static constexpr int kInputs = 256, kBytes = 2176;
  using Codebook = NoCodebook;
  using Table = uint32_t[1];
  __device__ static void make_entry(const Codebook&, int, Table&) {}
  __device__ static void weights(const std::byte* unit, int row, int b, int half, const Table&, uint32_t (&w)[4]) {
    iq4_steps(word_at(unit, 2 + 4 * b + 2 * half, row), w[0], w[1]);
    iq4_steps(word_at(unit, 2 + 4 * b + 2 * half + 1, row), w[2], w[3]);
  }
  __device__ static uint32_t word(const std::byte* unit, int row, int b, int half, int k, const Table&) {
    return iq4_steps(word_at(unit, 2 + 4 * b + 2 * half + k / 2, row) >> 16 * (k % 2));
  }
  __device__ static int scale(const std::byte* unit, int row, int b, int) {
    const uint32_t low = word_at(unit, 1, row) >> 4 * b & 15;
    const uint32_t high = word_at(unit, 0, row) >> (16 + 2 * b) & 3;
    return static_cast<int>(low | high << 4) - 32;
  }
  __device__ static float factor(const std::byte* unit, int row, int, const uint16_t*) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(word_at(unit, 0, row))));
  }
};

// Bytes below 128, less one each.
__device__ inline uint32_t without_one(uint32_t bytes) {
  return ((bytes | 0x80808080U) - 0x01010101U) ^ 0x80808080U;
}

struct Q2_0 {
  static constexpr int kInputs = 128, kBytes = 576;
  using Codebook = NoCodebook;
  using Table = uint32_t[1];
  __device__ static void make_entry(const Codebook&, int, Table&) {}
  __device__ static void weights(const std::byte* unit, int row, int b, int half, const Table&, uint32_t (&w)[4]) {
    const uint32_t codes = word_at(unit, 2 * b + half, row);
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k] = without_one(codes >> 2 * k & 0x03030303U);
  }
  __device__ static uint32_t word(const std::byte* unit, int row, int b, int half, int k, const Table&) {
    return without_one(word_at(unit, 2 * b + half, row) >> 2 * k & 0x03030303U);
  }
  __device__ static int scale(const std::byte*, int, int, int) { return 1; }
  __device__ static float factor(const std::byte* unit, int row, int b, const uint16_t*) {
    return half_at(unit, 8, b / 2, row);
  }
};

// With activations in FP32 only: canonical products are in experts_nvfp4.
struct Nvfp4 {
  static constexpr int kInputs = 64, kBytes = 576;
  using Codebook = NoCodebook;
  using Table = uint32_t[1];
  __device__ static void make_entry(const Codebook&, int, Table&) {}
  __device__ static void weights(const std::byte* unit, int row, int b, int half, const Table&, uint32_t (&w)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t codes = word_at(unit, 4 * b + 2 * half + i, row);
      const uint32_t flipped = codes ^ 0x88888888U;
      // A byte is the positive table's where its sign is clear, and zero else; the other way round.
      w[2 * i] = __vsub4(permute_bytes(0x03020100, 0x0c080604, codes), permute_bytes(0x03020100, 0x0c080604, flipped));
      w[2 * i + 1] = __vsub4(permute_bytes(0x03020100, 0x0c080604, codes >> 16),
                             permute_bytes(0x03020100, 0x0c080604, flipped >> 16));
    }
  }
  __device__ static int scale(const std::byte* unit, int row, int b, int half) {
    const uint32_t code = reinterpret_cast<const uint8_t*>(unit)[512 + row * 4 + 2 * b + half];
    return e4m3_times_512(code << 20);
  }
  __device__ static float factor(const std::byte*, int, int, const uint16_t*) { return 0x1p-10F; }
};

// 512 * E4M3 in four planes whose units are 1, 8, 128 and 2048: a code has a byte of at most 120 in one of them.
struct Fp8 {
  static constexpr int kInputs = 32, kBytes = 512;
  using Codebook = NoCodebook;
  using Table = uint32_t[1];
  __device__ static void make_entry(const Codebook&, int, Table&) {}
  // Magnitudes with signs of four codes, and masks of their planes.
  struct Planes {
    uint32_t bytes;
    uint32_t bit5, bit6;
  };
  __device__ static Planes planes(uint32_t codes) {
    const uint32_t nibbles = codes & 0x0f0f0f0fU;
    const uint32_t bit3 = byte_masks(codes << 4);
    const uint32_t bit4 = byte_masks(codes << 3);
    const uint32_t bit5 = byte_masks(codes << 2);
    const uint32_t bit6 = byte_masks(codes << 1);
    const uint32_t normal = nibbles + ((nibbles & bit3) | (0x08080808U & ~bit3));  // (8 + (n & 7)) << (n >> 3)
    const uint32_t lower = (bit4 & (normal << 1)) | (~bit4 & nibbles);
    const uint32_t others = (bit4 & (normal << 2)) | (~bit4 & normal);
    const uint32_t first = ~(bit5 | bit6);
    const uint32_t magnitudes = (first & lower) | (~first & others);
    return {__vsub4(magnitudes ^ byte_masks(codes), byte_masks(codes)), bit5, bit6};
  }
  // The four planes' dot products into sums.
  __device__ static void add_dots(const Planes& w, uint32_t q, int (&sums)[4]) {
    sums[0] = dot_signed(w.bytes & ~(w.bit5 | w.bit6), q, sums[0]);
    sums[1] = dot_signed(w.bytes & w.bit5 & ~w.bit6, q, sums[1]);
    sums[2] = dot_signed(w.bytes & w.bit6 & ~w.bit5, q, sums[2]);
    sums[3] = dot_signed(w.bytes & w.bit5 & w.bit6, q, sums[3]);
  }
  __device__ static int total(const int (&sums)[4]) { return sums[0] + 8 * sums[1] + 128 * sums[2] + 2048 * sums[3]; }
  __device__ static float factor(const std::byte*, int, int block, const uint16_t* scales) {
    return __uint_as_float(static_cast<uint32_t>(scales[block / 4]) << 16) * 0x1p-9F;
  }
};

}  // namespace tandem::ops::cuda::expert
