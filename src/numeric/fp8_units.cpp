#include "numeric/fp8_units.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/e4m3.h"
#include "numeric/fp8_block.h"

namespace tandem::numeric {

namespace {

static_assert(std::endian::native == std::endian::little, "code words are copied as the source's bytes");

constexpr int64_t kWordCodes = 4;

void require_fp8_units(int64_t rows, int64_t inputs, size_t codes, size_t units) {
  const bool whole = rows > 0 && inputs > 0 && rows % kFp8UnitRows == 0 && inputs % kFp8UnitInputs == 0;
  if (whole && codes == static_cast<size_t>(rows * inputs) && units == codes) return;
  base::internal_error("FP8", "{} codes and {} bytes are no matrix [{}, {}] in units of {} rows x {} inputs", codes,
                       units, rows, inputs, kFp8UnitRows, kFp8UnitInputs);
}

// Calls word(offset in the units, offset in the codes) for every word of four codes.
template <typename Word>
void for_each_word(int64_t rows, int64_t inputs, const Word& word) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t tile = row - row % kFp8UnitRows;
    for (int64_t input = 0; input < inputs; input += kWordCodes) {
      word(static_cast<size_t>(tile * inputs + input * kFp8UnitRows + row % kFp8UnitRows * kWordCodes),
           static_cast<size_t>(row * inputs + input));
    }
  }
}

}  // namespace

void pack_fp8_units(std::span<const uint8_t> codes, int64_t rows, int64_t inputs, std::span<std::byte> units) {
  require_fp8_units(rows, inputs, codes.size(), units.size());
  for_each_word(rows, inputs, [&](size_t to, size_t from) { std::memcpy(&units[to], &codes[from], kWordCodes); });
}

void unpack_fp8_units(std::span<const std::byte> units, int64_t rows, int64_t inputs, std::span<uint8_t> codes) {
  require_fp8_units(rows, inputs, codes.size(), units.size());
  for_each_word(rows, inputs, [&](size_t from, size_t to) { std::memcpy(&codes[to], &units[from], kWordCodes); });
}

void decode_fp8_row(const std::byte* tile, int64_t row, const uint16_t* scales, std::span<float> out) {
  for (size_t input = 0; input < out.size(); ++input) {
    const size_t word = input / kWordCodes * kFp8UnitRows + static_cast<size_t>(row);
    const auto code = std::to_integer<uint8_t>(tile[word * kWordCodes + input % kWordCodes]);
    out[input] = e4m3_to_float(code) * bf16_to_float(scales[input / kFp8BlockSide]);
  }
}

}  // namespace tandem::numeric
