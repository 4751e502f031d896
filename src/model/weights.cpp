#include "model/weights.h"

#include <algorithm>
#include <bit>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/units.h"
#include "numeric/bf16.h"
#include "numeric/f16.h"

namespace tandem::model {

namespace {

using artifact::Encoding;

// What a thread reads at once. For a card it is less: a matrix of some tens of megabytes is then read by all threads in
// the time that the one before takes over the bus.
constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int64_t kStagedPieceBytes = int64_t{2} << 20;
constexpr int64_t kStagingBytes = int64_t{64} << 20;

uint64_t loadable_bytes(const artifact::Artifact& artifact, bool draft_head) {
  uint64_t bytes = 0;
  for (const artifact::Object& object : artifact.objects()) {
    const artifact::Group group = artifact::object_group(object);
    if (group == artifact::Group::kTexts || group == artifact::Group::kVision || group == artifact::Group::kNgram)
      continue;
    if (group != artifact::Group::kDraft || draft_head) bytes += object.bytes;
  }
  return bytes;
}

}  // namespace

WeightLoader::WeightLoader(const artifact::Artifact& artifact, device::Device& device, ops::Ops& ops,
                           base::WorkerPool& pool, bool draft_head, bool quiet)
    : artifact_(artifact),
      device_(device),
      ops_(ops),
      pool_(pool),
      progress_("loading", loadable_bytes(artifact, draft_head), base::ProgressUnit::kBytes, quiet) {}

device::Buffer& WeightLoader::own(int64_t bytes) {
  if (to_host_memory_) {
    return buffers_.emplace_back(device::Buffer::shared(device_, device_.counts_only() ? 1 : bytes));
  }
  bytes_ += bytes;
  return buffers_.emplace_back(device_, bytes);
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
  device::Buffer& buffer = own(static_cast<int64_t>(object.bytes));
  if (device_.counts_only()) return buffer.data();
  const bool staged = !device_.is_host() && !to_host_memory_;
  // Generated objects are made in pieces of 8 MiB.
  const int64_t wanted = staged && !artifact_.generated() ? kStagedPieceBytes : kPieceBytes;
  const int64_t piece = std::max<int64_t>(1, wanted / unit_bytes) * unit_bytes;
  if (staged) {
    load_by_staging(object, piece, buffer.data());
    return buffer.data();
  }
  const auto bytes = static_cast<int64_t>(object.bytes);
  pool_.run(base::ceil_div(bytes, piece), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto count = static_cast<uint64_t>(std::min(piece, bytes - i * piece));
      artifact_.read(object, static_cast<uint64_t>(i * piece), {buffer.data() + i * piece, count});
      progress_.add(count);
    }
  });
  return buffer.data();
}

void WeightLoader::load_by_staging(const artifact::Object& object, int64_t piece, std::byte* to) {
  const auto bytes = static_cast<int64_t>(object.bytes);
  const int64_t batch = std::max<int64_t>(1, kStagingBytes / piece) * piece;
  for (int64_t at = 0; at < bytes; at += batch) {
    const int64_t count = std::min(batch, bytes - at);
    device::Buffer& staging = staging_[turn_];
    turn_ = 1 - turn_;
    if (staging.bytes() < batch) staging = device::Buffer::shared(device_, batch);
    pool_.run(base::ceil_div(count, piece), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * piece; i < std::min(end * piece, count); i += piece) {
        const auto part = static_cast<uint64_t>(std::min(piece, count - i));
        artifact_.read(object, static_cast<uint64_t>(at + i), {staging.data() + i, part});
        progress_.add(part);
      }
    });
    device_.finish();  // the other half has arrived and may be filled again
    device_.upload(to + at, staging.data(), count);
  }
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
  progress_.add(bytes.size());
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
  device::Buffer& buffer = own(bytes);
  device_.upload(buffer.data(), values.data(), bytes);
  return buffer.as<float>();
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
  progress_.add(found.bytes);
  return values;
}

}  // namespace tandem::model
