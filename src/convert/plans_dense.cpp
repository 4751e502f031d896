#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/units.h"
#include "convert/gather.h"
#include "convert/plans.h"

namespace tandem::convert {

namespace {

using artifact::Encoding;
using checkpoint::Checkpoint;
using checkpoint::Dtype;
using checkpoint::Tensor;

Encoding plain_encoding(const Tensor& tensor) {
  switch (tensor.dtype) {
    case Dtype::kBF16:
      return Encoding::kBF16;
    case Dtype::kF32:
      return Encoding::kF32;
    case Dtype::kF16:
      return Encoding::kF16;
    case Dtype::kI64:
      return Encoding::kI64;
    case Dtype::kF8E4M3:
      return Encoding::kF8E4M3;
    case Dtype::kU8:
      return Encoding::kU8;
    default:
      base::bad_input(tensor.name, "is {}, a number format that artifacts do not hold", checkpoint::describe(tensor));
  }
}

class TextPlan final : public ObjectPlan {
 public:
  TextPlan(std::string name, std::string content)
      : ObjectPlan(std::move(name), Encoding::kText, {static_cast<int64_t>(content.size())}),
        content_(std::move(content)) {}

  void make(const Checkpoint&, uint64_t chunk, std::span<std::byte> out) const override {
    std::memcpy(out.data(), content_.data() + chunk * chunk_bytes_, out.size());
  }
  bool invert(uint64_t chunk, std::span<const std::byte> bytes, const PieceSink&) const override {
    return std::memcmp(bytes.data(), content_.data() + chunk * chunk_bytes_, bytes.size()) == 0;
  }

 private:
  std::string content_;
};

class TensorPlan final : public GatherPlan {
 public:
  TensorPlan(const Tensor& tensor, Check check)
      : GatherPlan(tensor.name, plain_encoding(tensor), tensor.shape), check_(check) {
    tensors_ = {&tensor};
  }

 private:
  std::vector<Segment> segments(uint64_t chunk) const override {
    return {
        {.tensor = tensors_[0], .offset = chunk * chunk_bytes_, .bytes = chunk_size(chunk), .at = 0, .check = check_}};
  }

  Check check_;
};

Encoding integer_encoding(const Tensor& packed, int bits) {
  for (const Encoding encoding : {Encoding::kInt3, Encoding::kInt4, Encoding::kInt8}) {
    if (artifact::integer_bits(encoding) == bits) return encoding;
  }
  base::bad_input(packed.name, "has codes of {} bits; artifacts hold 3, 4 and 8", bits);
}

// Rows of packed words, each turned into a row of units.
class IntegerPlan final : public ObjectPlan {
 public:
  IntegerPlan(const Tensor& packed, const Tensor& shape, int64_t rows, int64_t inputs, int bits,
              numeric::IntPacking packing)
      : ObjectPlan(packed.name, integer_encoding(packed, bits), {rows, inputs}),
        shape_(shape),
        bits_(bits),
        packing_(packing),
        inputs_(static_cast<size_t>(inputs)),
        words_(static_cast<size_t>(numeric::int_packed_words(inputs, bits, packing))),
        row_bytes_(static_cast<size_t>(numeric::int_row_bytes(inputs, bits))) {
    if (packed.dtype != Dtype::kI32 || packed.bytes != static_cast<uint64_t>(rows) * words_ * sizeof(uint32_t)) {
      base::bad_input(packed.name, "is {}, expected I32 [{}, {}]", checkpoint::describe(packed), rows, words_);
    }
    object_.packed_words = static_cast<int64_t>(words_);
    tensors_ = {&packed};
    chunk_bytes_ = std::max<uint64_t>(1, kChunkBytes / row_bytes_) * row_bytes_;
  }

  void make(const Checkpoint& checkpoint, uint64_t chunk, std::span<std::byte> out) const override {
    if (chunk == 0) check_shape(checkpoint);
    const size_t rows = out.size() / row_bytes_;
    std::vector<uint32_t> words(rows * words_);
    const uint64_t first = chunk * (chunk_bytes_ / row_bytes_);
    checkpoint.read(*tensors_[0], first * words_ * sizeof(uint32_t), std::as_writable_bytes(std::span(words)));
    std::vector<uint8_t> codes(inputs_);
    for (size_t row = 0; row < rows; ++row) {
      if (!numeric::int_unpack_row(std::span(words).subspan(row * words_, words_), bits_, packing_, codes)) {
        base::bad_input(tensors_[0]->name, "has bits in row {} that belong to none of its {} codes of {} bits",
                        first + row, inputs_, bits_);
      }
      numeric::int_store_row(codes, bits_, out.subspan(row * row_bytes_, row_bytes_));
    }
  }

  bool invert(uint64_t chunk, std::span<const std::byte> bytes, const PieceSink& sink) const override {
    const size_t rows = bytes.size() / row_bytes_;
    std::vector<uint32_t> words(rows * words_);
    std::vector<uint8_t> codes(inputs_);
    bool padded = true;
    for (size_t row = 0; row < rows; ++row) {
      padded = numeric::int_load_row(bytes.subspan(row * row_bytes_, row_bytes_), bits_, codes) && padded;
      numeric::int_pack_row(codes, bits_, packing_, std::span(words).subspan(row * words_, words_));
    }
    const uint64_t first = chunk * (chunk_bytes_ / row_bytes_);
    sink(*tensors_[0], first * words_ * sizeof(uint32_t), std::as_bytes(std::span(words)));
    return padded;
  }

 private:
  void check_shape(const Checkpoint& checkpoint) const {
    int64_t found[2] = {};
    if (shape_.bytes == sizeof found) checkpoint.read(shape_, 0, std::as_writable_bytes(std::span(found)));
    if (found[0] != object_.shape[0] || found[1] != object_.shape[1]) {
      base::bad_input(shape_.name, "says [{}, {}], but the config asks for [{}, {}]", found[0], found[1],
                      object_.shape[0], object_.shape[1]);
    }
  }

  const Tensor& shape_;
  int bits_;
  numeric::IntPacking packing_;
  size_t inputs_;  // of a row, as the next two
  size_t words_;
  size_t row_bytes_;
};

// Rows of all shards, numbered through, in blocks of kAlignment bytes with whole rows only.
class NgramPlan final : public ObjectPlan {
 public:
  NgramPlan(std::string name, const std::vector<const Tensor*>& shards, int64_t rows)
      : ObjectPlan(std::move(name), shards[0]->dtype == Dtype::kBF16 ? Encoding::kNgramBF16 : Encoding::kNgramF8E4M3,
                   {rows, shards[0]->shape[1]}) {
    tensors_ = shards;
    row_bytes_ = static_cast<uint64_t>(shards[0]->shape[1]) * (shards[0]->dtype == Dtype::kBF16 ? 2 : 1);
    block_rows_ = artifact::ngram_rows_per_block(row_bytes_);
    for (const Tensor* shard : shards) {
      first_row_.push_back(first_row_.empty() ? 0 : end_row_);
      end_row_ += static_cast<uint64_t>(shard->shape[0]);
    }
  }

  void make(const Checkpoint& checkpoint, uint64_t chunk, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{0});
    std::vector<std::byte> rows;
    for_each_range(chunk, out.size(), [&](const Tensor& shard, uint64_t shard_row, uint64_t row, uint64_t count) {
      rows.resize(count * row_bytes_);
      checkpoint.read(shard, shard_row * row_bytes_, rows);
      if (shard.dtype == Dtype::kF8E4M3) check_values(Check::kE4M3, shard, shard_row * row_bytes_, rows);
      for_each_block(row, count, [&](uint64_t at, uint64_t done, uint64_t bytes) {
        std::memcpy(out.data() + at, rows.data() + done, bytes);
      });
    });
  }

  bool invert(uint64_t chunk, std::span<const std::byte> bytes, const PieceSink& sink) const override {
    std::vector<std::byte> rows;
    for_each_range(chunk, bytes.size(), [&](const Tensor& shard, uint64_t shard_row, uint64_t row, uint64_t count) {
      rows.resize(count * row_bytes_);
      for_each_block(row, count, [&](uint64_t at, uint64_t done, uint64_t size) {
        std::memcpy(rows.data() + done, bytes.data() + at, size);
      });
      sink(shard, shard_row * row_bytes_, rows);
    });
    return padding_is_zero(chunk, bytes);
  }

 private:
  uint64_t first_row(uint64_t chunk) const { return chunk * (chunk_bytes_ / artifact::kAlignment) * block_rows_; }

  // Calls range(shard, row in the shard, row in the chunk, rows) for the rows of a chunk, cut at the shards.
  template <typename Range>
  void for_each_range(uint64_t chunk, uint64_t bytes, Range range) const {
    const uint64_t begin = first_row(chunk);
    const uint64_t end = std::min(end_row_, begin + bytes / artifact::kAlignment * block_rows_);
    for (size_t shard = 0; shard < tensors_.size(); ++shard) {
      const uint64_t shard_end = first_row_[shard] + static_cast<uint64_t>(tensors_[shard]->shape[0]);
      const uint64_t from = std::max(begin, first_row_[shard]);
      const uint64_t to = std::min(end, shard_end);
      if (from < to) range(*tensors_[shard], from - first_row_[shard], from - begin, to - from);
    }
  }

  // Calls piece(byte in the chunk, byte in the rows, bytes) for `count` rows from a chunk's row on, cut at the blocks.
  template <typename Piece>
  void for_each_block(uint64_t row, uint64_t count, Piece piece) const {
    for (uint64_t done = 0; done < count;) {
      const uint64_t in_block = (row + done) % block_rows_;
      const uint64_t rows = std::min(count - done, block_rows_ - in_block);
      piece((row + done) / block_rows_ * artifact::kAlignment + in_block * row_bytes_, done * row_bytes_,
            rows * row_bytes_);
      done += rows;
    }
  }

  bool padding_is_zero(uint64_t chunk, std::span<const std::byte> bytes) const {
    for (uint64_t block = 0; block < bytes.size() / artifact::kAlignment; ++block) {
      const uint64_t row = first_row(chunk) + block * block_rows_;
      const uint64_t rows = std::min(block_rows_, end_row_ - row);
      const uint64_t used = rows * row_bytes_;
      if (!all_zero(bytes.subspan(block * artifact::kAlignment + used, artifact::kAlignment - used))) return false;
    }
    return true;
  }

  uint64_t row_bytes_ = 0;
  uint64_t block_rows_ = 0;
  std::vector<uint64_t> first_row_;  // of each shard
  uint64_t end_row_ = 0;
};

}  // namespace

std::unique_ptr<ObjectPlan> plan_text(std::string name, std::string content) {
  return std::make_unique<TextPlan>(std::move(name), std::move(content));
}

std::unique_ptr<ObjectPlan> plan_tensor(const Tensor& tensor, Check check) {
  return std::make_unique<TensorPlan>(tensor, check);
}

std::unique_ptr<ObjectPlan> plan_integers(const Tensor& packed, const Tensor& shape, int64_t rows, int64_t inputs,
                                          int bits, numeric::IntPacking packing) {
  return std::make_unique<IntegerPlan>(packed, shape, rows, inputs, bits, packing);
}

std::unique_ptr<ObjectPlan> plan_ngram(std::string name, const std::vector<const Tensor*>& shards) {
  const Tensor& first = *shards[0];
  int64_t rows = 0;
  for (const Tensor* shard : shards) {
    const bool dtype = shard->dtype == Dtype::kF8E4M3 || shard->dtype == Dtype::kBF16;
    if (!dtype || shard->dtype != first.dtype || shard->shape.size() != 2 || shard->shape[1] != first.shape[1]) {
      base::bad_input(shard->name, "is {}, where shards of one n-gram table are F8_E4M3 or BF16 and as wide as {} ({})",
                      checkpoint::describe(*shard), first.name, checkpoint::describe(first));
    }
    rows += shard->shape[0];
  }
  return std::make_unique<NgramPlan>(std::move(name), shards, rows);
}

}  // namespace tandem::convert
