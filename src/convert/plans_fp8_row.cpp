// Matrices re-encoded as FP8 with a scale a row.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "convert/plans.h"
#include "numeric/bf16.h"
#include "numeric/f16.h"
#include "numeric/fp8_row.h"

namespace tandem::convert {

namespace {

using artifact::Encoding;
using checkpoint::Checkpoint;
using checkpoint::Dtype;
using checkpoint::Tensor;

class Fp8RowPlan : public ObjectPlan {
 public:
  Fp8RowPlan(std::string name, const Tensor& matrix, Encoding encoding, std::vector<int64_t> shape)
      : ObjectPlan(std::move(name), encoding, std::move(shape)),
        inputs_(static_cast<size_t>(matrix.shape[1])),
        element_bytes_(matrix.dtype == Dtype::kF32 ? 4 : 2) {
    tensors_ = {&matrix};
  }

  bool invert(uint64_t, std::span<const std::byte>, const PieceSink&) const final { return true; }
  bool reencodes() const final { return true; }

 protected:
  // Calls row(index from `first`, codes, scale) for `count` rows of the matrix, a piece at a time.
  template <typename Row>
  void for_each_row(const Checkpoint& checkpoint, uint64_t first, uint64_t count, Row row) const {
    const uint64_t row_bytes = inputs_ * element_bytes_;
    const uint64_t most = std::max<uint64_t>(1, kChunkBytes / row_bytes);
    std::vector<std::byte> bytes;
    std::vector<float> weights(inputs_);
    std::vector<uint8_t> codes(inputs_);
    for (uint64_t done = 0; done < count; done += most) {
      const uint64_t rows = std::min(most, count - done);
      bytes.resize(rows * row_bytes);
      checkpoint.read(*tensors_[0], (first + done) * row_bytes, bytes);
      for (uint64_t r = 0; r < rows; ++r) {
        decode(bytes.data() + r * row_bytes, first + done + r, weights);
        const float scale = numeric::fp8_tensor_encode(weights, codes);
        row(done + r, codes, scale);
      }
    }
  }

 private:
  void decode(const std::byte* bytes, uint64_t row, std::span<float> weights) const {
    for (size_t i = 0; i < inputs_; ++i) {
      uint16_t bits = 0;
      switch (tensors_[0]->dtype) {
        case Dtype::kF32:
          std::memcpy(&weights[i], bytes + 4 * i, 4);
          break;
        case Dtype::kF16:
          std::memcpy(&bits, bytes + 2 * i, 2);
          weights[i] = numeric::f16_to_float(bits);
          break;
        default:
          std::memcpy(&bits, bytes + 2 * i, 2);
          weights[i] = numeric::bf16_to_float(bits);
      }
      if (!std::isfinite(weights[i])) {
        base::bad_input(tensors_[0]->name, "is {} at [{}, {}] and cannot be re-encoded", weights[i], row, i);
      }
    }
  }

  size_t inputs_;
  uint64_t element_bytes_;
};

class Fp8RowCodesPlan final : public Fp8RowPlan {
 public:
  explicit Fp8RowCodesPlan(const Tensor& matrix) : Fp8RowPlan(matrix.name, matrix, Encoding::kF8E4M3, matrix.shape) {
    width_ = static_cast<uint64_t>(matrix.shape[1]);
    chunk_bytes_ = std::max<uint64_t>(1, kChunkBytes / width_) * width_;
  }

  void make(const Checkpoint& checkpoint, uint64_t chunk, std::span<std::byte> out) const override {
    for_each_row(checkpoint, chunk * (chunk_bytes_ / width_), out.size() / width_,
                 [&](uint64_t row, std::span<const uint8_t> codes, float) {
                   std::memcpy(out.data() + row * width_, codes.data(), codes.size());
                 });
  }

 private:
  uint64_t width_ = 0;
};

class Fp8RowScalesPlan final : public Fp8RowPlan {
 public:
  Fp8RowScalesPlan(std::string name, const Tensor& matrix)
      : Fp8RowPlan(std::move(name), matrix, Encoding::kF32, {matrix.shape[0], 1}) {}

  void make(const Checkpoint& checkpoint, uint64_t chunk, std::span<std::byte> out) const override {
    for_each_row(checkpoint, chunk * chunk_bytes_ / sizeof(float), out.size() / sizeof(float),
                 [&](uint64_t row, std::span<const uint8_t>, float scale) {
                   std::memcpy(out.data() + row * sizeof scale, &scale, sizeof scale);
                 });
  }
};

}  // namespace

std::unique_ptr<ObjectPlan> plan_fp8_row_codes(const Tensor& matrix) {
  return std::make_unique<Fp8RowCodesPlan>(matrix);
}

std::unique_ptr<ObjectPlan> plan_fp8_row_scales(const Tensor& matrix) {
  return std::make_unique<Fp8RowScalesPlan>(matrix.name + "_scale", matrix);
}

}  // namespace tandem::convert
