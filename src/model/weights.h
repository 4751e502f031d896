// Reads the weights of a model from an artifact into memory that the model owns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "artifact/artifact.h"
#include "base/progress.h"
#include "device/buffer.h"
#include "ops/ops.h"

namespace tandem::model {

// Every getter checks the object's presence, encoding and shape, and throws base::Error{kBadInput} that names it with
// the expected and the found figures. What it returns stays valid as long as the loader's storage (take()).
class WeightLoader {
 public:
  WeightLoader(const artifact::Artifact& artifact, bool quiet);

  // A matrix [rows, inputs] as stored, in any format of ops::WeightFormat; `name` ends in ".weight".
  ops::Weight matrix(const std::string& name, int64_t rows, int64_t inputs);
  // Any small tensor of `count` elements in FP32, from BF16, F16 or FP32.
  const float* vector(const std::string& name, int64_t count);
  // A depthwise kernel [channels, 1, kernel] turned into [kernel, channels] FP32, oldest tap first.
  const float* convolution(const std::string& name, int64_t channels, int64_t kernel);
  // The routed experts of one module.
  ops::ExpertTable experts(const std::string& name, int64_t experts, int64_t inner, int64_t hidden);
  // Whole numbers on the host.
  std::vector<int64_t> integers(const std::string& name, int64_t count);

  const artifact::Artifact& artifact() const { return artifact_; }
  int64_t bytes() const { return bytes_; }
  std::vector<device::Buffer> take() { return std::move(buffers_); }

 private:
  class MatrixReader;

  const artifact::Object& object(const std::string& name, const std::vector<int64_t>& shape);
  std::byte* load(const artifact::Object& object);
  device::Buffer& own(int64_t bytes);

  const artifact::Artifact& artifact_;
  base::Progress progress_;
  std::vector<device::Buffer> buffers_;
  int64_t bytes_ = 0;
};

}  // namespace tandem::model
