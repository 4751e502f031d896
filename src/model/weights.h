// Reads the weights of a model from an artifact into memory that the model owns: first every object gets its place,
// then all of them are read in one go.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "artifact/artifact.h"
#include "base/pool.h"
#include "base/progress.h"
#include "device/buffer.h"
#include "ops/ops.h"

namespace tandem::model {

// Every getter checks the object's presence, encoding and shape, and throws base::Error{kBadInput} that names it with
// the expected and the found figures. What it returns stays valid as long as the loader's storage, and holds its values
// once finish() returned.
class WeightLoader {
 public:
  // All must outlive it.
  WeightLoader(const artifact::Artifact& artifact, device::Device& device, ops::Ops& ops, base::WorkerPool& pool,
               bool quiet);

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
  // Reads everything that was asked for, and gives the memory that it lies in.
  std::vector<device::Buffer> finish();

 private:
  class MatrixReader;
  class Staging;

  const artifact::Object& object(const std::string& name, const std::vector<int64_t>& shape);
  // The values of a small tensor, on the host.
  std::vector<float> values(const std::string& name, int64_t count);
  const float* own_copy(const std::vector<float>& values);
  // The place that an object will be read to; it is made in whole units where it is generated.
  std::byte* load(const artifact::Object& object, int64_t unit_bytes = 1);
  std::byte* own(int64_t bytes);

  // A piece of the device's memory that small objects share.
  struct Block {
    std::byte* free = nullptr;
    int64_t left = 0;
  };

  struct Transfer {
    const artifact::Object* object = nullptr;
    int64_t unit_bytes = 1;
    std::byte* to = nullptr;
  };
  // What one thread reads at once.
  struct Piece {
    const artifact::Object* object = nullptr;
    int64_t offset = 0;
    int64_t bytes = 0;
    std::byte* to = nullptr;
  };
  std::vector<Piece> pieces_of(const std::vector<Transfer>& transfers, int64_t most) const;
  void read_piece(const Piece& piece);
  void read_pieces(std::span<const Piece> pieces);
  // By way of shared memory.
  void upload_pieces(std::span<const Piece> pieces);

  const artifact::Artifact& artifact_;
  device::Device& device_;
  ops::Ops& ops_;
  base::WorkerPool& pool_;
  const bool quiet_;
  std::optional<base::Progress> progress_;  // of finish()
  std::vector<device::Buffer> buffers_;
  std::vector<Block> blocks_;  // of buffers_
  int64_t to_come_ = 0;        // bytes that will still be asked for, or more
  int64_t bytes_ = 0;
  bool to_host_memory_ = false;
  std::vector<Transfer> to_host_, to_device_;
  std::vector<ops::Weight> to_arrange_;
};

}  // namespace tandem::model
