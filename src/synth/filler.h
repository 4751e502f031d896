// What the bytes of a synthetic tensor are made of, and the making: any piece of any tensor, in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/tensor.h"

namespace tandem::synth {

// How the values of one tensor are drawn.
enum class Draw : uint8_t {
  kNormal,       // mean + spread * N(0, 1), as BF16, F16 or F32
  kRows,         // the same with mean 0, row r times row_factors[r]
  kTopics,       // spread * (sqrt(share) * topic's vector + sqrt(1 - share) * N(0, 1)); row r has topic r % topics
  kUniform,      // between mean and mean + spread
  kNvfp4Codes,   // bytes of two E2M1 codes of normal values, the largest of 16 at 6
  kNvfp4Scales,  // E4M3 scales of such blocks, the largest at 448
  kE4M3Codes,    // E4M3 codes of normal values, four spreads at 448
  kPackedCodes,  // I32 words of `bits`-bit codes of normal values, packed as `format` says
  kIntegers,     // `integers`
};

struct TensorPlan {
  checkpoint::Dtype dtype = checkpoint::Dtype::kBF16;
  Draw draw = Draw::kNormal;
  double mean = 0;
  double spread = 0;
  int64_t row_elements = 1;  // kRows, kTopics: elements of a row; kPackedCodes: words of a row
  std::shared_ptr<const std::vector<float>> row_factors;
  int64_t topics = 0;
  double share = 0;
  uint64_t topic_key = 0;  // one for all tensors that share their topics
  int bits = 0;
  bool dense_bits = false;  // one stream of bits instead of floor(32 / bits) codes to a word
  int64_t row_codes = 0;    // kPackedCodes: inputs of a row
  std::vector<int64_t> integers;
};

// The tables that values are drawn from. Immutable; make() may be called from several threads.
class Filler {
 public:
  Filler();

  // Bytes [offset, offset + out.size()) of a tensor; both are multiples of its element's size.
  void make(const TensorPlan& plan, uint64_t key, uint64_t offset, std::span<std::byte> out) const;

 private:
  template <typename Function>
  void floats(const TensorPlan& plan, uint64_t first, std::span<std::byte> out, Function value) const;
  void bytes(const std::vector<uint8_t>& table, uint64_t key, uint64_t first, std::span<std::byte> out) const;
  void packed(const TensorPlan& plan, uint64_t key, uint64_t first, std::span<std::byte> out) const;
  float normal(uint64_t key, uint64_t index) const { return normal_[drawn(key, index)]; }
  // 16 bits of the sequence.
  static uint16_t drawn(uint64_t key, uint64_t index);

  std::vector<float> normal_;  // [65536] quantiles
  // [65536] bytes each
  std::vector<uint8_t> nvfp4_codes_, nvfp4_scales_, e4m3_codes_;
};

}  // namespace tandem::synth
