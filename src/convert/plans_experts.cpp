#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/units.h"
#include "convert/gather.h"
#include "convert/plans.h"
#include "numeric/fp8_block.h"
#include "numeric/fp8_units.h"
#include "numeric/nvfp4.h"

namespace tandem::convert {

namespace {

using artifact::Encoding;
using checkpoint::Checkpoint;
using checkpoint::Dtype;
using checkpoint::Tensor;

struct Dims {
  int64_t inner = 0;
  int64_t hidden = 0;
};

void require(const Tensor& tensor, Dtype dtype, const std::vector<int64_t>& shape) {
  if (tensor.dtype != dtype || tensor.shape != shape) {
    base::bad_input(tensor.name, "is {}, expected {} [{}]", checkpoint::describe(tensor), checkpoint::dtype_name(dtype),
                    fmt::join(shape, ", "));
  }
}

// inner and hidden from expert 0's gate weight, which stores `per_byte` inputs to an element.
Dims dims_of(const std::vector<Expert>& experts, int64_t per_element) {
  const Tensor& gate = *experts[0].gate.weight;
  if (gate.shape.size() != 2) {
    base::bad_input(gate.name, "is {}, expected a matrix of [inner, hidden]", checkpoint::describe(gate));
  }
  return {gate.shape[0], gate.shape[1] * per_element};
}

std::vector<int64_t> experts_shape(size_t experts, Dims dims) {
  return {static_cast<int64_t>(experts), dims.inner, dims.hidden};
}

std::array<const Projection*, 3> projections(const Expert& expert) {
  return {&expert.gate, &expert.up, &expert.down};
}

// Rows and inputs of projection 0 gate, 1 up, 2 down.
Dims matrix(Dims dims, int projection) {
  return projection < 2 ? dims : Dims{.inner = dims.hidden, .hidden = dims.inner};
}

void require_fused(const Tensor& gate_up, const Tensor& down) {
  if (gate_up.shape.size() != 3 || gate_up.shape[0] < 1 || gate_up.shape[1] % 2 != 0) {
    base::bad_input(gate_up.name, "is {}, expected BF16 [experts, 2 * inner, hidden]", checkpoint::describe(gate_up));
  }
  require(gate_up, Dtype::kBF16, gate_up.shape);
  require(down, Dtype::kBF16, {gate_up.shape[0], gate_up.shape[2], gate_up.shape[1] / 2});
}

Dims require_bf16(const std::vector<Expert>& experts) {
  const Dims dims = dims_of(experts, 1);
  for (const Expert& expert : experts) {
    for (int i = 0; i < 3; ++i) {
      const auto [rows, inputs] = matrix(dims, i);
      require(*projections(expert)[static_cast<size_t>(i)]->weight, Dtype::kBF16, {rows, inputs});
    }
  }
  return dims;
}

Dims require_fp8_block(const std::vector<Expert>& experts) {
  const Dims dims = dims_of(experts, 1);
  for (const Expert& expert : experts) {
    for (int i = 0; i < 3; ++i) {
      const auto [rows, inputs] = matrix(dims, i);
      const Projection& projection = *projections(expert)[static_cast<size_t>(i)];
      require(*projection.weight, Dtype::kF8E4M3, {rows, inputs});
      require(*projection.weight_scale_inv, Dtype::kBF16, {numeric::fp8_blocks(rows), numeric::fp8_blocks(inputs)});
    }
  }
  return dims;
}

// Records in the order gate, up, down of whole tensors.
class RecordsPlan : public GatherPlan {
 public:
  RecordsPlan(std::string name, Encoding encoding, std::vector<int64_t> shape)
      : GatherPlan(std::move(name), encoding, std::move(shape)) {
    chunk_bytes_ = object_.record_bytes;
  }

 protected:
  static void add(std::vector<Segment>& segments, const Tensor& tensor, uint64_t offset, uint64_t bytes, Check check) {
    const uint64_t at = segments.empty() ? 0 : segments.back().at + segments.back().bytes;
    segments.push_back({.tensor = &tensor, .offset = offset, .bytes = bytes, .at = at, .check = check});
  }
};

class FusedPlan final : public RecordsPlan {
 public:
  FusedPlan(std::string name, const Tensor& gate_up, const Tensor& down)
      : RecordsPlan(std::move(name), Encoding::kExpertsBF16,
                    {gate_up.shape[0], gate_up.shape[1] / 2, gate_up.shape[2]}) {
    tensors_ = {&gate_up, &down};
  }

 private:
  std::vector<Segment> segments(uint64_t expert) const override {
    const uint64_t experts = static_cast<uint64_t>(object_.shape[0]);
    const uint64_t gate_up = tensors_[0]->bytes / experts;
    const uint64_t down = tensors_[1]->bytes / experts;
    std::vector<Segment> segments;
    add(segments, *tensors_[0], expert * gate_up, gate_up, Check::kNone);
    add(segments, *tensors_[1], expert * down, down, Check::kNone);
    return segments;
  }
};

class SeparatePlan final : public RecordsPlan {
 public:
  SeparatePlan(std::string name, Dims dims, const std::vector<Expert>& experts)
      : RecordsPlan(std::move(name), Encoding::kExpertsBF16, experts_shape(experts.size(), dims)) {
    for (const Expert& expert : experts) {
      for (const Projection* projection : projections(expert)) tensors_.push_back(projection->weight);
    }
  }

 private:
  std::vector<Segment> segments(uint64_t expert) const override {
    std::vector<Segment> segments;
    for (size_t i = 3 * expert; i < 3 * (expert + 1); ++i) {
      add(segments, *tensors_[i], 0, tensors_[i]->bytes, Check::kNone);
    }
    return segments;
  }
};

class ScalarsPlan final : public GatherPlan {
 public:
  ScalarsPlan(std::string name, std::vector<const Tensor*> scalars, int64_t experts)
      : GatherPlan(std::move(name), Encoding::kF32, {experts, static_cast<int64_t>(scalars.size()) / experts}) {
    tensors_ = std::move(scalars);
  }

 private:
  std::vector<Segment> segments(uint64_t chunk) const override {
    const uint64_t first = chunk * chunk_bytes_ / sizeof(float);
    const uint64_t count = chunk_size(chunk) / sizeof(float);
    std::vector<Segment> segments;
    segments.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      segments.push_back({.tensor = tensors_[first + i],
                          .offset = 0,
                          .bytes = sizeof(float),
                          .at = i * sizeof(float),
                          .check = Check::kF32Scales});
    }
    return segments;
  }
};

class Nvfp4Plan final : public ObjectPlan {
 public:
  Nvfp4Plan(std::string name, Dims dims, std::vector<Expert> experts)
      : ObjectPlan(std::move(name), Encoding::kExpertsNvfp4, experts_shape(experts.size(), dims)),
        dims_(dims),
        experts_(std::move(experts)) {
    chunk_bytes_ = object_.record_bytes;
    for (const Expert& expert : experts_) {
      for (const Projection* projection : projections(expert)) {
        tensors_.push_back(projection->weight);
        tensors_.push_back(projection->weight_scale);
      }
    }
  }

  void make(const Checkpoint& checkpoint, uint64_t expert, std::span<std::byte> out) const override {
    uint64_t at = 0;
    for (int i = 0; i < 3; ++i) {
      const auto [rows, inputs] = matrix(dims_, i);
      const Projection& projection = *projections(experts_[expert])[static_cast<size_t>(i)];
      std::vector<uint8_t> codes(projection.weight->bytes);
      std::vector<uint8_t> scales(projection.weight_scale->bytes);
      checkpoint.read(*projection.weight, 0, std::as_writable_bytes(std::span(codes)));
      checkpoint.read(*projection.weight_scale, 0, std::as_writable_bytes(std::span(scales)));
      numeric::nvfp4_check_scales(scales, inputs / numeric::kNvfp4Block, projection.weight_scale->name);
      const std::span<std::byte> units = out.subspan(at, matrix_bytes());
      numeric::pack_units(codes, scales, rows, inputs, units);
      at += units.size();
    }
    std::ranges::fill(out.subspan(at), std::byte{0});
  }

  bool invert(uint64_t expert, std::span<const std::byte> bytes, const PieceSink& sink) const override {
    uint64_t at = 0;
    for (int i = 0; i < 3; ++i) {
      const auto [rows, inputs] = matrix(dims_, i);
      const Projection& projection = *projections(experts_[expert])[static_cast<size_t>(i)];
      std::vector<uint8_t> codes(projection.weight->bytes);
      std::vector<uint8_t> scales(projection.weight_scale->bytes);
      numeric::unpack_units(bytes.subspan(at, matrix_bytes()), rows, inputs, codes, scales);
      sink(*projection.weight, 0, std::as_bytes(std::span(codes)));
      sink(*projection.weight_scale, 0, std::as_bytes(std::span(scales)));
      at += matrix_bytes();
    }
    return all_zero(bytes.subspan(at));
  }

 private:
  uint64_t matrix_bytes() const {
    return static_cast<uint64_t>(numeric::nvfp4_record_bytes(dims_.inner, dims_.hidden));
  }

  Dims dims_;
  std::vector<Expert> experts_;
};

class Fp8BlockPlan final : public ObjectPlan {
 public:
  Fp8BlockPlan(std::string name, Dims dims, const std::vector<Expert>& experts)
      : ObjectPlan(std::move(name), Encoding::kExpertsFp8Block, experts_shape(experts.size(), dims)),
        dims_(dims),
        record_(artifact::record_of(object_)) {
    chunk_bytes_ = object_.record_bytes;
    for (const Expert& expert : experts) {
      for (const Projection* projection : projections(expert)) {
        tensors_.push_back(projection->weight);
        tensors_.push_back(projection->weight_scale_inv);
      }
    }
  }

  void make(const Checkpoint& checkpoint, uint64_t expert, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{0});
    for_each_matrix(expert, [&](const Tensor& weight, const Tensor& scales, Dims matrix, size_t at, size_t scales_at) {
      std::vector<uint8_t> codes(weight.bytes);
      const auto code_bytes = std::as_writable_bytes(std::span(codes));
      checkpoint.read(weight, 0, code_bytes);
      check_values(Check::kE4M3, weight, 0, code_bytes);
      numeric::pack_fp8_units(codes, matrix.inner, matrix.hidden, out.subspan(at, codes.size()));
      const std::span<std::byte> grid = out.subspan(scales_at, scales.bytes);
      checkpoint.read(scales, 0, grid);
      check_values(Check::kBF16Scales, scales, 0, grid);
    });
  }

  bool invert(uint64_t expert, std::span<const std::byte> bytes, const PieceSink& sink) const override {
    size_t end = 0;
    for_each_matrix(expert, [&](const Tensor& weight, const Tensor& scales, Dims matrix, size_t at, size_t scales_at) {
      std::vector<uint8_t> codes(weight.bytes);
      numeric::unpack_fp8_units(bytes.subspan(at, codes.size()), matrix.inner, matrix.hidden, codes);
      sink(weight, 0, std::as_bytes(std::span(codes)));
      sink(scales, 0, bytes.subspan(scales_at, scales.bytes));
      end = scales_at + scales.bytes;
    });
    return all_zero(bytes.subspan(end));
  }

 private:
  // Calls matrix(weight, scales, rows and inputs, places of both in the record) for gate, up and down.
  template <typename Matrix>
  void for_each_matrix(uint64_t expert, const Matrix& call) const {
    for (int i = 0; i < 3; ++i) {
      const numeric::ExpertRecord::Matrix& placed = record_.matrices[static_cast<size_t>(i)];
      const uint64_t first = 2 * (3 * expert + static_cast<uint64_t>(i));
      call(*tensors_[first], *tensors_[first + 1], matrix(dims_, i), static_cast<size_t>(placed.offset),
           static_cast<size_t>(placed.scales_offset));
    }
  }

  Dims dims_;
  numeric::ExpertRecord record_;
};

}  // namespace

std::unique_ptr<ObjectPlan> plan_experts_fused(std::string name, const Tensor& gate_up, const Tensor& down) {
  require_fused(gate_up, down);
  return std::make_unique<FusedPlan>(std::move(name), gate_up, down);
}

std::unique_ptr<ObjectPlan> plan_experts_bf16(std::string name, const std::vector<Expert>& experts) {
  return std::make_unique<SeparatePlan>(std::move(name), require_bf16(experts), experts);
}

std::unique_ptr<ObjectPlan> plan_experts_fp8_block(std::string name, const std::vector<Expert>& experts) {
  return std::make_unique<Fp8BlockPlan>(std::move(name), require_fp8_block(experts), experts);
}

ExpertWeights fused_expert_weights(const Tensor& gate_up, const Tensor& down) {
  require_fused(gate_up, down);
  ExpertWeights weights{.inner = down.shape[2], .hidden = down.shape[1], .matrices = {}};
  const auto experts = static_cast<uint64_t>(down.shape[0]);
  for (uint64_t e = 0; e < experts; ++e) {
    for (uint64_t half = 0; half < 2; ++half) {
      weights.matrices.push_back({&gate_up, gate_up.bytes / experts / 2 * (2 * e + half), nullptr});
    }
    weights.matrices.push_back({&down, down.bytes / experts * e, nullptr});
  }
  return weights;
}

ExpertWeights expert_weights(const std::vector<Expert>& experts) {
  const Dims dims = experts[0].gate.weight_scale_inv != nullptr ? require_fp8_block(experts) : require_bf16(experts);
  ExpertWeights weights{.inner = dims.inner, .hidden = dims.hidden, .matrices = {}};
  for (const Expert& expert : experts) {
    for (const Projection* projection : projections(expert)) {
      weights.matrices.push_back({projection->weight, 0, projection->weight_scale_inv});
    }
  }
  return weights;
}

std::unique_ptr<ObjectPlan> plan_experts_nvfp4(std::string name, std::vector<Expert> experts) {
  const Dims dims = dims_of(experts, 2);
  for (const Expert& expert : experts) {
    for (int i = 0; i < 3; ++i) {
      const auto [rows, inputs] = matrix(dims, i);
      const Projection& projection = *projections(expert)[static_cast<size_t>(i)];
      require(*projection.weight, Dtype::kU8, {rows, inputs / 2});
      require(*projection.weight_scale, Dtype::kF8E4M3, {rows, inputs / numeric::kNvfp4Block});
    }
  }
  return std::make_unique<Nvfp4Plan>(std::move(name), dims, std::move(experts));
}

std::unique_ptr<ObjectPlan> plan_expert_scalars(std::string name, const std::vector<Expert>& experts) {
  std::vector<const Tensor*> scalars;
  const auto add = [&](const Tensor& tensor) {
    if (tensor.dtype != Dtype::kF32 || tensor.bytes != sizeof(float)) {
      base::bad_input(tensor.name, "is {}, expected one F32", checkpoint::describe(tensor));
    }
    scalars.push_back(&tensor);
  };
  const bool inputs = experts[0].gate.input_scale != nullptr;
  for (const Expert& expert : experts) {
    for (const Projection* projection : projections(expert)) add(*projection->weight_scale_2);
    if (!inputs) continue;
    for (const Projection* projection : projections(expert)) add(*projection->input_scale);
  }
  return std::make_unique<ScalarsPlan>(std::move(name), std::move(scalars), static_cast<int64_t>(experts.size()));
}

}  // namespace tandem::convert
