#include "model/weights.h"

#include <algorithm>
#include <bit>
#include <fmt/ranges.h>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/f16.h"

namespace tandem::model {

namespace {

using artifact::Encoding;

constexpr uint64_t kReadBytes = 8 << 20;

uint64_t loadable_bytes(const artifact::Artifact& artifact) {
  uint64_t bytes = 0;
  for (const artifact::Object& object : artifact.objects()) {
    const bool on_disk = artifact::is_ngram(object.encoding) || object.encoding == Encoding::kText;
    if (!on_disk && !object.name.starts_with("model.visual.")) bytes += object.bytes;
  }
  return bytes;
}

}  // namespace

WeightLoader::WeightLoader(const artifact::Artifact& artifact, bool quiet)
    : artifact_(artifact), progress_("loading", loadable_bytes(artifact), base::ProgressUnit::kBytes, quiet) {}

device::Buffer& WeightLoader::own(int64_t bytes) {
  bytes_ += bytes;
  return buffers_.emplace_back(bytes);
}

const artifact::Object& WeightLoader::object(const std::string& name, const std::vector<int64_t>& shape) {
  const artifact::Object& found = artifact_.at(name);
  if (found.shape != shape) {
    base::bad_input(artifact_.folder().string(), "{} has shape [{}], the config asks for [{}]", name,
                    fmt::join(found.shape, ", "), fmt::join(shape, ", "));
  }
  return found;
}

std::byte* WeightLoader::load(const artifact::Object& object) {
  device::Buffer& buffer = own(static_cast<int64_t>(object.bytes));
  for (uint64_t at = 0; at < object.bytes; at += kReadBytes) {
    const uint64_t count = std::min(kReadBytes, object.bytes - at);
    artifact_.read(object, at, buffer.span().subspan(at, count));
    progress_.add(count);
  }
  return buffer.data();
}

const float* WeightLoader::vector(const std::string& name, int64_t count) {
  const artifact::Object& found = artifact_.at(name);
  int64_t elements = 1;
  for (const int64_t dimension : found.shape) elements *= dimension;
  if (elements != count) {
    base::bad_input(artifact_.folder().string(), "{} has {} elements, the config asks for {}", name, elements, count);
  }
  const std::vector<std::byte> bytes = artifact_.read(found);
  progress_.add(bytes.size());
  float* out = own(count * 4).as<float>();
  for (int64_t i = 0; i < count; ++i) {
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

const float* WeightLoader::convolution(const std::string& name, int64_t channels, int64_t kernel) {
  (void)object(name, {channels, 1, kernel});
  const float* by_channel = vector(name, channels * kernel);
  float* by_tap = own(channels * kernel * 4).as<float>();
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < kernel; ++j) by_tap[j * channels + c] = by_channel[c * kernel + j];
  }
  return by_tap;
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
  table.records = load(found);
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
