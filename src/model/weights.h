// Reads the weights of a model from an artifact into memory that the model owns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "artifact/artifact.h"
#include "base/pool.h"
#include "base/progress.h"
#include "device/buffer.h"
#include "ops/ops.h"

namespace tandem::model {

// Every getter checks the object's presence, encoding and shape, and throws base::Error{kBadInput} that names it with
// the expected and the found figures. What it returns stays valid as long as the loader's storage (take()).
class WeightLoader {
 public:
  // All must outlive it. Whether the draft head is loaded counts for the progress alone.
  WeightLoader(const artifact::Artifact& artifact, device::Device& device, ops::Ops& ops, base::WorkerPool& pool,
               bool draft_head, bool quiet);

  // A matrix [rows, inputs] in any format of ops::WeightFormat, in the order that `ops` reads; `name` ends in
  // ".weight".
  ops::Weight matrix(const std::string& name, int64_t rows, int64_t inputs);
  // The same in shared memory of the host, for a table of which a step reads a few rows.
  ops::Weight matrix_in_host_memory(const std::string& name, int64_t rows, int64_t inputs);
  // Any small tensor of `count` elements in FP32, from BF16, F16 or FP32.
  const float* vector(const std::string& name, int64_t count);
  // The same of one element, on the host.
  float scalar(const std::string& name);
  // A depthwise kernel [channels, 1, kernel] turned into [kernel, channels] FP32, oldest tap first.
  const float* convolution(const std::string& name, int64_t channels, int64_t kernel);
  // The routed experts of one module.
  ops::ExpertTable experts(const std::string& name, int64_t experts, int64_t inner, int64_t hidden);
  // Whole numbers on the host.
  std::vector<int64_t> integers(const std::string& name, int64_t count);

  const artifact::Artifact& artifact() const { return artifact_; }
  int64_t bytes() const { return bytes_; }  // on the device
  std::vector<device::Buffer> take() { return std::move(buffers_); }

 private:
  class MatrixReader;

  const artifact::Object& object(const std::string& name, const std::vector<int64_t>& shape);
  // The values of a small tensor, on the host.
  std::vector<float> values(const std::string& name, int64_t count);
  const float* own_copy(const std::vector<float>& values);
  // Reads an object in pieces of about 8 MiB, whole units each, in all threads.
  std::byte* load(const artifact::Object& object, int64_t unit_bytes = 1);
  void load_by_staging(const artifact::Object& object, int64_t piece, std::byte* to);
  device::Buffer& own(int64_t bytes);

  const artifact::Artifact& artifact_;
  device::Device& device_;
  ops::Ops& ops_;
  base::WorkerPool& pool_;
  base::Progress progress_;
  std::vector<device::Buffer> buffers_;
  int64_t bytes_ = 0;
  device::Buffer staging_[2];  // shared memory that takes turns: one is filled while the other is on its way
  bool to_host_memory_ = false;
  int turn_ = 0;
};

}  // namespace tandem::model
