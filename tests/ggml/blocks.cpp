// Compares the table of tensor types and every block decoder with ggml's own, bit for bit, on random blocks whose
// scales go through all 65,536 patterns of a binary16.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "library.h"
#include "numeric/f16.h"
#include "numeric/ggml_types.h"

namespace tandem::ggml_compare {
namespace {

using numeric::GgmlTraits;
using numeric::GgmlType;

constexpr int kTypeCount = 43;  // ids below this are ggml's

// Where the binary16 scales of a block stand.
std::vector<size_t> scale_places(GgmlType type) {
  if (type == GgmlType::kQ4K || type == GgmlType::kQ5K) return {0, 2};
  if (type == GgmlType::kQ6K) return {208};
  return {0};
}

bool same_value(float a, float b) {
  // Which NaN an operation gives is not defined; blocks with such scales are invalid.
  if (std::isnan(a) && std::isnan(b)) return true;
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

void compare_table(const Library& ggml) {
  auto* name = ggml.function<const char*(int)>("lm_ggml_type_name");
  auto* elements = ggml.function<int64_t(int)>("lm_ggml_blck_size");
  auto* bytes = ggml.function<size_t(int)>("lm_ggml_type_size");
  for (int id = 0; id < kTypeCount; ++id) {
    const GgmlTraits* traits = numeric::find_ggml_type(static_cast<uint32_t>(id));
    if (traits == nullptr) {
      if (elements(id) != 0) Library::fail("type " + std::to_string(id) + " is missing in the table");
      continue;
    }
    std::string capitals = name(id);
    std::transform(capitals.begin(), capitals.end(), capitals.begin(),
                   [](char c) { return static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c); });
    if (capitals != traits->name || elements(id) != traits->block_elements ||
        bytes(id) != static_cast<size_t>(traits->block_bytes)) {
      Library::fail("type " + std::to_string(id) + " is " + capitals + " in ggml: another name, block or size");
    }
  }
}

// All of BF16 and F16.
void compare_halves(const Library& ggml) {
  auto* f16 = ggml.function<float(uint16_t)>("lm_ggml_fp16_to_fp32");
  auto* bf16 = ggml.function<float(uint16_t)>("lm_ggml_bf16_to_fp32");
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float ours[2];
    numeric::ggml_decode(GgmlType::kF16, std::as_bytes(std::span(&half, 1)), std::span(&ours[0], 1));
    numeric::ggml_decode(GgmlType::kBF16, std::as_bytes(std::span(&half, 1)), std::span(&ours[1], 1));
    if (!same_value(ours[0], f16(half)) || !same_value(ours[1], bf16(half))) {
      Library::fail("F16 or BF16 " + std::to_string(bits) + " has another value in ggml");
    }
  }
}

void compare_blocks(const Library& ggml, const GgmlTraits& traits, uint64_t seed) {
  const auto id = static_cast<int>(traits.type);
  const std::string symbol = std::string("dequantize_row_") + ggml.function<const char*(int)>("lm_ggml_type_name")(id);
  auto* oracle = ggml.function<void(const void*, float*, int64_t)>(symbol);
  const std::vector<size_t> places = scale_places(traits.type);
  const auto bytes = static_cast<size_t>(traits.block_bytes);
  const auto elements = static_cast<size_t>(traits.block_elements);
  constexpr size_t kRun = 64;  // blocks at a time
  constexpr size_t kBlocks = 4 * 65536;
  std::mt19937_64 random(seed + static_cast<uint64_t>(id));
  std::vector<std::byte> data(kRun * bytes);
  std::vector<float> ours(kRun * elements);
  std::vector<float> theirs(kRun * elements);
  for (size_t first = 0; first < kBlocks; first += kRun) {
    for (size_t at = 0; at < data.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(&data[at], &word, std::min<size_t>(8, data.size() - at));
    }
    for (size_t block = 0; block < kRun; ++block) {
      for (size_t place = 0; place < places.size(); ++place) {
        // The first scale counts through all patterns, a second one is random.
        const auto bits = static_cast<uint16_t>(place == 0 ? first + block : random());
        std::memcpy(&data[block * bytes + places[place]], &bits, sizeof bits);
      }
    }
    numeric::ggml_decode(traits.type, data, ours);
    oracle(data.data(), theirs.data(), static_cast<int64_t>(theirs.size()));
    for (size_t i = 0; i < ours.size(); ++i) {
      if (same_value(ours[i], theirs[i])) continue;
      Library::fail(std::string(traits.name) + ": weight " + std::to_string(i % elements) + " of block " +
                    std::to_string(first + i / elements) + " is " + std::to_string(ours[i]) + ", in ggml " +
                    std::to_string(theirs[i]) + " (seed " + std::to_string(seed) + ")");
    }
  }
  std::printf("%-8s %zu blocks, %zu weights: equal bits\n", std::string(traits.name).c_str(), kBlocks,
              kBlocks * elements);
}

}  // namespace
}  // namespace tandem::ggml_compare

int main(int argc, char** argv) {
  using namespace tandem;
  if (argc != 2) ggml_compare::Library::fail("usage: ggml_blocks_compare LIBRARY");
  const ggml_compare::Library ggml(argv[1]);
  const uint64_t seed = std::random_device{}();
  ggml_compare::compare_table(ggml);
  ggml_compare::compare_halves(ggml);
  for (const numeric::GgmlTraits& traits : numeric::ggml_types()) {
    if (traits.decode != nullptr && traits.block_elements > 1) ggml_compare::compare_blocks(ggml, traits, seed);
  }
  return 0;
}
