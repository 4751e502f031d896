// Routed experts re-encoded as NVFP4.
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "convert/plans.h"
#include "numeric/bf16.h"
#include "numeric/fp8_block.h"
#include "numeric/nvfp4.h"

namespace tandem::convert {

namespace {

using artifact::Encoding;
using checkpoint::Checkpoint;
using checkpoint::Tensor;

constexpr size_t kMatrices = 3;

class ReencodedExpertsPlan : public ObjectPlan {
 public:
  ReencodedExpertsPlan(std::string name, Encoding encoding, std::vector<int64_t> shape, ExpertWeights weights)
      : ObjectPlan(std::move(name), encoding, std::move(shape)), weights_(std::move(weights)) {
    for (const ExpertWeights::Matrix& matrix : weights_.matrices) {
      for (const Tensor* tensor : {matrix.weight, matrix.scales}) {
        if (tensor != nullptr && std::ranges::count(tensors_, tensor) == 0) tensors_.push_back(tensor);
      }
    }
  }

  bool invert(uint64_t, std::span<const std::byte>, const PieceSink&) const final { return true; }
  bool reencodes() const final { return true; }

 protected:
  int64_t rows(size_t which) const { return which == 2 ? weights_.hidden : weights_.inner; }
  int64_t inputs(size_t which) const { return which == 2 ? weights_.inner : weights_.hidden; }

  // Gate, up or down of an expert in FP32. Throws where a weight is not finite.
  std::vector<float> decode(const Checkpoint& checkpoint, uint64_t expert, size_t which) const {
    const ExpertWeights::Matrix& matrix = weights_.matrices[kMatrices * expert + which];
    std::vector<float> values(static_cast<size_t>(rows(which) * inputs(which)));
    if (matrix.scales == nullptr) {
      std::vector<uint16_t> bits(values.size());
      checkpoint.read(*matrix.weight, matrix.offset, std::as_writable_bytes(std::span(bits)));
      std::ranges::transform(bits, values.begin(), numeric::bf16_to_float);
    } else {
      std::vector<uint8_t> codes(values.size());
      const auto code_bytes = std::as_writable_bytes(std::span(codes));
      checkpoint.read(*matrix.weight, matrix.offset, code_bytes);
      check_values(Check::kE4M3, *matrix.weight, matrix.offset, code_bytes);
      std::vector<std::byte> scales = checkpoint.read(*matrix.scales);
      check_values(Check::kBF16Scales, *matrix.scales, 0, scales);
      numeric::fp8_block_decode(codes, {scales, numeric::Fp8ScaleType::kBF16}, rows(which), inputs(which), values);
    }
    const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    if (bad == values.end()) return values;
    const int64_t at = bad - values.begin();
    refuse(expert, which, fmt::format("is {} at [{}, {}]", *bad, at / inputs(which), at % inputs(which)));
  }

  float tensor_scale(const Checkpoint& checkpoint, uint64_t expert, size_t which) const {
    const float scale = numeric::nvfp4_tensor_scale(decode(checkpoint, expert, which));
    if (scale == 0 || numeric::Nvfp4Scale{scale}.valid()) return scale;
    refuse(expert, which, fmt::format("has weights up to {}", scale * numeric::kNvfp4Range));
  }

 private:
  [[noreturn]] void refuse(uint64_t expert, size_t which, const std::string& what) const {
    static constexpr const char* kNames[kMatrices] = {"gate_proj", "up_proj", "down_proj"};
    base::bad_input(weights_.matrices[kMatrices * expert + which].weight->name,
                    "{} of expert {} {} and cannot be re-encoded", kNames[which], expert, what);
  }

  ExpertWeights weights_;
};

class ReencodedRecordsPlan final : public ReencodedExpertsPlan {
 public:
  ReencodedRecordsPlan(std::string name, std::vector<int64_t> shape, ExpertWeights weights)
      : ReencodedExpertsPlan(std::move(name), Encoding::kExpertsNvfp4, std::move(shape), std::move(weights)) {
    chunk_bytes_ = object_.record_bytes;
  }

  void make(const Checkpoint& checkpoint, uint64_t expert, std::span<std::byte> out) const override {
    for (size_t which = 0; which < kMatrices; ++which) {
      const std::vector<float> weights = decode(checkpoint, expert, which);
      std::vector<uint8_t> codes(static_cast<size_t>(numeric::nvfp4_code_bytes(rows(which), inputs(which))));
      std::vector<uint8_t> scales(static_cast<size_t>(numeric::nvfp4_scale_bytes(rows(which), inputs(which))));
      numeric::nvfp4_encode(weights, rows(which), inputs(which), codes, scales);
      const auto bytes = static_cast<size_t>(numeric::nvfp4_record_bytes(rows(which), inputs(which)));
      numeric::pack_units(codes, scales, rows(which), inputs(which), out.first(bytes));
      out = out.subspan(bytes);
    }
    std::ranges::fill(out, std::byte{0});
  }
};

class ReencodedScalarsPlan final : public ReencodedExpertsPlan {
 public:
  ReencodedScalarsPlan(std::string name, std::vector<int64_t> shape, ExpertWeights weights)
      : ReencodedExpertsPlan(std::move(name), Encoding::kF32, std::move(shape), std::move(weights)) {
    chunk_bytes_ = kMatrices * sizeof(float);  // an expert
  }

  void make(const Checkpoint& checkpoint, uint64_t expert, std::span<std::byte> out) const override {
    for (size_t which = 0; which < kMatrices; ++which) {
      const float scale = tensor_scale(checkpoint, expert, which);
      std::memcpy(out.data() + which * sizeof scale, &scale, sizeof scale);
    }
  }
};

}  // namespace

std::unique_ptr<ObjectPlan> plan_reencoded_experts(std::string name, ExpertWeights weights) {
  std::vector<int64_t> shape = {weights.experts(), weights.inner, weights.hidden};
  return std::make_unique<ReencodedRecordsPlan>(std::move(name), std::move(shape), std::move(weights));
}

std::unique_ptr<ObjectPlan> plan_reencoded_scalars(std::string name, ExpertWeights weights) {
  std::vector<int64_t> shape = {weights.experts(), static_cast<int64_t>(kMatrices)};
  return std::make_unique<ReencodedScalarsPlan>(std::move(name), std::move(shape), std::move(weights));
}

}  // namespace tandem::convert
