#include "convert/object_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/units.h"

namespace tandem::convert {

namespace {

// Far beyond any calibrated multiplier, and where the arithmetic of the experts would lose bits (numeric/nvfp4.h).
constexpr float kLeastScale = 0x1p-100f;
constexpr float kGreatestScale = 0x1p100f;

[[noreturn]] void refuse(const checkpoint::Tensor& tensor, uint64_t element, std::string_view what) {
  std::vector<uint64_t> index(tensor.shape.size());
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    index[i] = element % static_cast<uint64_t>(tensor.shape[i]);
    element /= static_cast<uint64_t>(tensor.shape[i]);
  }
  base::bad_input(tensor.name, "{} at [{}] of {}", what, fmt::join(index, ", "), checkpoint::describe(tensor));
}

template <typename Value, typename Refused>
void check_each(const checkpoint::Tensor& tensor, uint64_t offset, std::span<const std::byte> bytes,
                std::string_view expected, Refused refused) {
  for (uint64_t i = 0; i + sizeof(Value) <= bytes.size(); i += sizeof(Value)) {
    Value value;
    std::memcpy(&value, bytes.data() + i, sizeof(Value));
    if (refused(value))
      refuse(tensor, (offset + i) / sizeof(Value), fmt::format("holds 0x{:X}, which is no {}", value, expected));
  }
}

bool bad_multiplier(uint32_t bits) {
  const auto value = std::bit_cast<float>(bits);
  return value != 0 && !(value >= kLeastScale && value <= kGreatestScale);
}

// Weights are far below 2688, the largest that codes and block scales reach: what would divide it up is above 1.
// Another value says that the direction was mistaken.
bool bad_divisor(uint32_t bits) {
  const auto value = std::bit_cast<float>(bits);
  return !(value > 1 && value <= kGreatestScale);
}

}  // namespace

ObjectPlan::ObjectPlan(std::string name, artifact::Encoding encoding, std::vector<int64_t> shape,
                       const numeric::ExpertFormats& formats) {
  object_.name = std::move(name);
  object_.encoding = encoding;
  object_.shape = std::move(shape);
  object_.formats = artifact::formats_of(encoding).value_or(formats);
  const std::optional<artifact::ObjectSize> size = artifact::object_size(encoding, object_.shape, object_.formats);
  if (!size) {
    std::string why;
    const auto uniform = artifact::formats_of(encoding);
    if (const int64_t multiple = uniform ? numeric::expert_multiple(uniform->front()) : 1; multiple > 1) {
      why = fmt::format(" (inner and hidden must be multiples of {})", multiple);
    }
    if (encoding == artifact::Encoding::kExpertsMixed) {
      why = fmt::format(" in {}, {} and {} (rows must be multiples of 16, inputs of the formats' units)",
                        numeric::expert_format_name(formats[0]), numeric::expert_format_name(formats[1]),
                        numeric::expert_format_name(formats[2]));
    }
    base::bad_input(object_.name, "has the shape [{}], which {} cannot hold{}", fmt::join(object_.shape, ", "),
                    artifact::encoding_name(encoding), why);
  }
  object_.bytes = size->bytes;
  object_.record_bytes = size->record_bytes;
}

uint64_t ObjectPlan::chunks() const {
  return base::round_up(object_.bytes, chunk_bytes_) / chunk_bytes_;
}

uint64_t ObjectPlan::chunk_size(uint64_t chunk) const {
  return std::min(chunk_bytes_, object_.bytes - chunk * chunk_bytes_);
}

void check_values(Check check, const checkpoint::Tensor& tensor, uint64_t offset, std::span<const std::byte> bytes) {
  switch (check) {
    case Check::kNone:
      return;
    case Check::kE4M3:
      check_each<uint8_t>(tensor, offset, bytes, "finite E4M3 number",
                          [](uint8_t code) { return (code & 0x7f) == 0x7f; });
      return;
    case Check::kUE4M3:
      check_each<uint8_t>(tensor, offset, bytes, "block scale: finite and not negative",
                          [](uint8_t code) { return code >= 0x7f; });
      return;
    case Check::kBF16Scales:
      check_each<uint16_t>(tensor, offset, bytes, "scale: finite and not negative",
                           [](uint16_t bits) { return bits > 0x7f7f; });
      return;
    case Check::kF32Scales:
      check_each<uint32_t>(tensor, offset, bytes, "scale: 0 or between 2^-100 and 2^100", bad_multiplier);
      return;
    case Check::kF32Divisors:
      check_each<uint32_t>(tensor, offset, bytes, "divisor of a weight: between 1 and 2^100", bad_divisor);
      return;
    case Check::kFiniteBF16:
      check_each<uint16_t>(tensor, offset, bytes, "finite scale",
                           [](uint16_t bits) { return (bits & 0x7f80) == 0x7f80; });
      return;
    case Check::kFiniteF16:
      check_each<uint16_t>(tensor, offset, bytes, "finite scale",
                           [](uint16_t bits) { return (bits & 0x7c00) == 0x7c00; });
      return;
    case Check::kFiniteF32:
      check_each<uint32_t>(tensor, offset, bytes, "finite scale",
                           [](uint32_t bits) { return (bits & 0x7f800000) == 0x7f800000; });
      return;
  }
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace tandem::convert
