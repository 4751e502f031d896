#include "model/weights.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "numeric/bf16.h"
#include "numeric/f16.h"

namespace tandem::model {

namespace {

using artifact::Encoding;

// What a thread reads at once. For a card it is less: what is on its way there should stay in the processor's cache.
constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int64_t kStagedPieceBytes = int64_t{512} << 10;

// A card takes as long to give out 5 MiB as 256, some 60 us. So what is smaller than half a block shares one, and the
// last block is no larger than what is still to come.
constexpr int64_t kBlockBytes = int64_t{256} << 20;
constexpr int64_t kLeastBlockBytes = int64_t{1} << 20;
constexpr uint64_t kObjectAlignment = 256;

}  // namespace

WeightLoader::WeightLoader(const artifact::Artifact& artifact, device::Device& device, ops::Ops& ops,
                           base::WorkerPool& pool, bool quiet)
    : artifact_(artifact), device_(device), ops_(ops), pool_(pool), quiet_(quiet) {
  for (const artifact::Object& object : artifact.objects()) {
    const bool always = object.name.starts_with("model.language_model.") || object.name.starts_with("lm_head.");
    if (always && !artifact::is_ngram(object.encoding)) to_come_ += static_cast<int64_t>(object.bytes);
  }
}

std::byte* WeightLoader::own(int64_t bytes) {
  const auto room = static_cast<int64_t>(base::round_up(static_cast<uint64_t>(bytes), kObjectAlignment));
  const int64_t block_bytes = std::clamp(to_come_, std::max(room, kLeastBlockBytes), std::max(room, kBlockBytes));
  to_come_ -= bytes;
  if (to_host_memory_) {
    return buffers_.emplace_back(device::Buffer::shared(device_, device_.counts_only() ? 1 : bytes)).data();
  }
  bytes_ += bytes;
  if (device_.is_host() || bytes > kBlockBytes / 2) return buffers_.emplace_back(device_, bytes).data();
  auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.left >= room; });
  if (block == blocks_.end()) {
    block = blocks_.insert(block, {buffers_.emplace_back(device_, block_bytes).data(), block_bytes});
  }
  block->left -= room;
  return std::exchange(block->free, block->free + room);
}

const artifact::Object& WeightLoader::object(const std::string& name, const std::vector<int64_t>& shape) {
  const artifact::Object& found = artifact_.at(name);
  if (found.shape != shape) {
    base::bad_input(artifact_.folder().string(), "{} has shape [{}], the config asks for [{}]", name,
                    fmt::join(found.shape, ", "), fmt::join(shape, ", "));
  }
  return found;
}

std::byte* WeightLoader::load(const artifact::Object& object, int64_t unit_bytes) {
  std::byte* to = own(static_cast<int64_t>(object.bytes));
  const bool in_place = device_.is_host() || to_host_memory_;
  (in_place ? to_host_ : to_device_).push_back({&object, unit_bytes, to});
  return to;
}

std::vector<device::Buffer> WeightLoader::finish() {
  if (!device_.counts_only()) {
    uint64_t bytes = 0;
    for (const auto* transfers : {&to_host_, &to_device_}) {
      for (const Transfer& transfer : *transfers) bytes += transfer.object->bytes;
    }
    progress_.emplace("loading", bytes, base::ProgressUnit::kBytes, quiet_);
    read_pieces(pieces_of(to_host_, kPieceBytes));
    // Generated objects are made in pieces of 8 MiB.
    upload_pieces(pieces_of(to_device_, artifact_.generated() ? kPieceBytes : kStagedPieceBytes));
    for (ops::Weight& w : to_arrange_) ops_.arrange(w);
    device_.finish();
  }
  return std::move(buffers_);
}

std::vector<WeightLoader::Piece> WeightLoader::pieces_of(const std::vector<Transfer>& transfers, int64_t most) const {
  std::vector<Piece> pieces;
  for (const Transfer& transfer : transfers) {
    const int64_t unit = artifact_.generated() ? transfer.unit_bytes : 1;
    const int64_t each = std::max<int64_t>(1, most / unit) * unit;
    const auto bytes = static_cast<int64_t>(transfer.object->bytes);
    for (int64_t at = 0; at < bytes; at += each) {
      pieces.push_back({transfer.object, at, std::min(each, bytes - at), transfer.to + at});
    }
  }
  return pieces;
}

void WeightLoader::read_piece(const Piece& piece) {
  const auto bytes = static_cast<size_t>(piece.bytes);
  artifact_.read(*piece.object, static_cast<uint64_t>(piece.offset), {piece.to, bytes});
  if (progress_) progress_->add(bytes);
}

void WeightLoader::read_pieces(std::span<const Piece> pieces) {
  pool_.run(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) read_piece(pieces[static_cast<size_t>(i)]);
  });
}

ops::Weight WeightLoader::matrix_in_host_memory(const std::string& name, int64_t rows, int64_t inputs) {
  to_host_memory_ = true;
  const ops::Weight weight = matrix(name, rows, inputs);
  to_host_memory_ = false;
  return weight;
}

std::vector<float> WeightLoader::values(const std::string& name, int64_t count) {
  const artifact::Object& found = artifact_.at(name);
  int64_t elements = 1;
  for (const int64_t dimension : found.shape) elements *= dimension;
  if (elements != count) {
    base::bad_input(artifact_.folder().string(), "{} has {} elements, the config asks for {}", name, elements, count);
  }
  const std::vector<std::byte> bytes = artifact_.read(found);
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) {
    switch (found.encoding) {
      case Encoding::kBF16:
        out[i] = numeric::bf16_to_float(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
        break;
      case Encoding::kF16:
        out[i] = numeric::f16_to_float(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
        break;
      case Encoding::kF32:
        out[i] = reinterpret_cast<const float*>(bytes.data())[i];
        break;
      default:
        base::bad_input(artifact_.folder().string(), "{} is stored as {}, expected bf16, f16 or f32", name,
                        artifact::encoding_name(found.encoding));
    }
  }
  return out;
}

const float* WeightLoader::own_copy(const std::vector<float>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  std::byte* to = own(bytes);
  device_.upload(to, values.data(), bytes);
  return reinterpret_cast<const float*>(to);
}

const float* WeightLoader::vector(const std::string& name, int64_t count) {
  return own_copy(values(name, count));
}

float WeightLoader::scalar(const std::string& name) {
  return values(name, 1)[0];
}

const float* WeightLoader::convolution(const std::string& name, int64_t channels, int64_t kernel) {
  (void)object(name, {channels, 1, kernel});
  const std::vector<float> by_channel = values(name, channels * kernel);
  std::vector<float> by_tap(by_channel.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < kernel; ++j) {
      by_tap[static_cast<size_t>(j * channels + c)] = by_channel[static_cast<size_t>(c * kernel + j)];
    }
  }
  return own_copy(by_tap);
}

ops::ExpertTable WeightLoader::experts(const std::string& name, int64_t experts, int64_t inner, int64_t hidden) {
  const artifact::Object& found = object(name, {experts, inner, hidden});
  ops::ExpertTable table;
  table.experts = experts;
  table.inner = inner;
  table.hidden = hidden;
  if (!artifact::is_experts(found.encoding)) {
    base::bad_input(artifact_.folder().string(), "{} is stored as {}, which is no encoding of experts", name,
                    artifact::encoding_name(found.encoding));
  }
  table.place(found.formats);
  if (found.encoding == Encoding::kExpertsNvfp4) {
    const std::string scalars = name + ".scalars";
    table.scalars_each = artifact_.at(scalars).shape == std::vector<int64_t>{experts, 3} ? 3 : 6;
    (void)object(scalars, {experts, table.scalars_each});
    table.scalars = vector(scalars, experts * table.scalars_each);
  }
  table.records = load(found, table.record.bytes);
  return table;
}

std::vector<int64_t> WeightLoader::integers(const std::string& name, int64_t count) {
  const artifact::Object& found = object(name, {count});
  if (found.encoding != Encoding::kI64) {
    base::bad_input(artifact_.folder().string(), "{} is stored as {}, expected i64", name,
                    artifact::encoding_name(found.encoding));
  }
  std::vector<int64_t> values(static_cast<size_t>(count));
  artifact_.read(found, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace tandem::model
