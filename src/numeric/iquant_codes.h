// IQ2_S and IQ3_S in units of blocks (numeric/block_units.h): the words of a row have the bits of the file's block, in
// an order that vector kernels decode with fewer look-ups, and number the codebooks' entries in another way.
//
// IQ2_S: the codes c, c + 64, … c + 960 never stand for entries that have 25 and 43 at the same place. So each digit is
// the sum of two bits, of which one is shared by the sixteen and needs only the low six bits of the code.
// IQ3_S: the codes c and c + 256 stand for entries that agree, at each place, whether the magnitude is in a set of four
// (kIq3sSets). That is one of three bits that a digit has, and needs only eight bits of the code.
//
// Words of a row, where b is a block of 32 inputs, and byte j of a word its bits 8j to 8j + 7:
//
// IQ2_S, codes of groups 4b + j of eight inputs   IQ3_S, codes of entries 8b + 4h + j of four inputs
//   word b          byte j: low byte of the code    word 2b + h       byte j: low byte of the code
//   word 8 + b      signs                           word 16 + b / 4   byte j, bit 2 (b mod 4) + h: its ninth bit
//   word 16 + b / 4 byte j, bits 2 (b mod 4) and    word 18 + b       signs
//                   one up: the code's upper two    word 26           scales, as in the file
//   word 18 + b / 4 scales, as in the file
//
// Signs of IQ2_S: inputs 4h + k of group j, k = 0 to 3: for j < 2 byte 2h + j, bits 2, 3, 6, 7; for j >= 2 byte
// 2 (1 - h) + j - 2, bits 0, 1, 4, 5. Signs of IQ3_S: input k of entry 4h + j: byte j, bits 3, 1, 7, 5 for h = 0, one
// down for h = 1.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "numeric/ggml_types.h"

namespace tandem::numeric {

// The entry of iq2s_grid() and iq3s_grid() that a code stands for; permutations.
const std::array<uint16_t, 1024>& iq2s_entries();
const std::array<uint16_t, 512>& iq3s_entries();

// Bit n of set i: the magnitude 2n + 1 belongs to the set of place i.
inline constexpr std::array<uint8_t, 4> kIq3sSets = {0x3C, 0x3C, 0x66, 0xE8};

// The words of a row of one block, little-endian, from the file's order to that of units and back; words of other types
// stay as they are.
void to_unit_words(GgmlType type, std::span<uint8_t> words);
void from_unit_words(GgmlType type, std::span<uint8_t> words);

}  // namespace tandem::numeric
