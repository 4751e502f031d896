// The seam of every recipe: one object of the artifact to be, and how its bytes follow from a checkpoint's tensors.
//
// An object is cut into chunks that are made, and inverted, one at a time: a stream needs memory for one chunk. A new
// recipe adds plans; converting, resuming and verifying stay as they are.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "artifact/object.h"
#include "checkpoint/checkpoint.h"

namespace tandem::convert {

// Bytes of a chunk where an object has no natural unit of its own.
inline constexpr uint64_t kChunkBytes = uint64_t{8} << 20;

// Receives bytes of a tensor that were recovered from an object: [offset, offset + bytes.size()) of its data.
using PieceSink =
    std::function<void(const checkpoint::Tensor& tensor, uint64_t offset, std::span<const std::byte> bytes)>;

// Immutable; its methods may be called from several threads.
class ObjectPlan {
 public:
  // The shape must be one that the encoding holds: throws base::Error{kBadInput} otherwise.
  ObjectPlan(std::string name, artifact::Encoding encoding, std::vector<int64_t> shape,
             const numeric::ExpertFormats& formats = {});
  virtual ~ObjectPlan() = default;

  // Part, offset and checksum are not set.
  const artifact::Object& object() const { return object_; }
  // Every tensor that has bytes in the object; empty for texts.
  const std::vector<const checkpoint::Tensor*>& tensors() const { return tensors_; }

  // All chunks have chunk_bytes() bytes but the last, which has what is left.
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  uint64_t chunks() const;
  uint64_t chunk_size(uint64_t chunk) const;

  // Fills `out` (chunk_size(chunk) bytes) from the checkpoint. Throws base::Error{kBadInput} that names tensor and
  // position at scales or codes that no tensor may have.
  virtual void make(const checkpoint::Checkpoint& checkpoint, uint64_t chunk, std::span<std::byte> out) const = 0;
  // The inverse: hands every byte of the chunk to the sink as a byte of a tensor, all chunks together every byte of
  // tensors() once. False where padding is not zero.
  virtual bool invert(uint64_t chunk, std::span<const std::byte> bytes, const PieceSink& sink) const = 0;
  // True where make() rounds, so that nothing can be inverted: making the bytes again is all the proof there is.
  virtual bool reencodes() const { return false; }

 protected:
  artifact::Object object_;
  std::vector<const checkpoint::Tensor*> tensors_;
  uint64_t chunk_bytes_ = kChunkBytes;
};

using Plans = std::vector<std::unique_ptr<ObjectPlan>>;

// What values of a tensor are refused.
enum class Check : uint8_t {
  kNone,
  kE4M3,         // NaN codes
  kUE4M3,        // NaN, and bit 7 set: the block scales of NVFP4
  kBF16Scales,   // NaN, infinite, negative
  kF32Scales,    // NaN, infinite, negative, and beyond what a multiplier can be
  kF32Divisors,  // what is no divisor of a weight: at most 1, or beyond what one can be
  kFiniteBF16,   // NaN and infinite, as the next two
  kFiniteF16,
  kFiniteF32,
};
// Throws base::Error{kBadInput} with the tensor's name and the index at the first such value of `bytes`, which are the
// tensor's data from byte `offset` on.
void check_values(Check check, const checkpoint::Tensor& tensor, uint64_t offset, std::span<const std::byte> bytes);

// True where all bytes are zero.
bool all_zero(std::span<const std::byte> bytes);

}  // namespace tandem::convert
