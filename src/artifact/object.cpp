#include "artifact/object.h"

#include <array>
#include <fmt/format.h>

#include "base/error.h"
#include "base/units.h"

namespace tandem::artifact {

namespace {

using numeric::ExpertFormat;

struct EncodingTraits {
  Encoding encoding;
  std::string_view name;
  uint32_t element_bytes;  // plain encodings and n-gram rows; else 0
};

constexpr std::array kEncodings = {
    EncodingTraits{Encoding::kBF16, "bf16", 2},
    EncodingTraits{Encoding::kF32, "f32", 4},
    EncodingTraits{Encoding::kF16, "f16", 2},
    EncodingTraits{Encoding::kI64, "i64", 8},
    EncodingTraits{Encoding::kF8E4M3, "f8_e4m3", 1},
    EncodingTraits{Encoding::kU8, "u8", 1},
    EncodingTraits{Encoding::kText, "text", 1},
    EncodingTraits{Encoding::kExpertsBF16, "experts_bf16", 0},
    EncodingTraits{Encoding::kExpertsNvfp4, "experts_nvfp4", 0},
    EncodingTraits{Encoding::kExpertsFp8Block, "experts_fp8_block", 0},
    EncodingTraits{Encoding::kExpertsMixed, "experts_mixed", 0},
    EncodingTraits{Encoding::kNgramF8E4M3, "ngram_f8_e4m3", 1},
    EncodingTraits{Encoding::kNgramBF16, "ngram_bf16", 2},
    EncodingTraits{Encoding::kInt3, "int3", 0},
    EncodingTraits{Encoding::kInt4, "int4", 0},
    EncodingTraits{Encoding::kInt8, "int8", 0},
};

const EncodingTraits& traits(Encoding encoding) {
  return kEncodings[static_cast<size_t>(encoding)];
}

constexpr uint64_t kLargest = uint64_t{1} << 60;
constexpr uint64_t kIntUnitInputs = 128;

// The product of the dimensions and `unit`, or nothing where one is negative or the product passes kLargest.
std::optional<uint64_t> product(std::span<const int64_t> shape, uint64_t unit) {
  uint64_t value = unit;
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0 || static_cast<uint64_t>(dimension) > kLargest) return std::nullopt;
    if (dimension == 0) {
      empty = true;
      continue;
    }
    if (value > kLargest / static_cast<uint64_t>(dimension)) return std::nullopt;
    value *= static_cast<uint64_t>(dimension);
  }
  return empty ? 0 : value;
}

std::optional<ObjectSize> experts_size(const numeric::ExpertFormats& formats, std::span<const int64_t> shape) {
  if (shape.size() != 3 || shape[0] < 1) return std::nullopt;
  const std::optional<numeric::ExpertRecord> record = numeric::expert_record(formats, shape[1], shape[2]);
  if (!record) return std::nullopt;
  const auto stride = static_cast<uint64_t>(record->bytes);
  const std::optional<uint64_t> bytes = product(shape.first(1), stride);
  if (!bytes) return std::nullopt;
  return ObjectSize{.bytes = *bytes, .record_bytes = stride};
}

std::optional<ObjectSize> ngram_size(Encoding encoding, std::span<const int64_t> shape) {
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) return std::nullopt;
  const std::optional<uint64_t> row = product(shape.subspan(1), traits(encoding).element_bytes);
  if (!row || *row > kAlignment || static_cast<uint64_t>(shape[0]) > kLargest / kAlignment) return std::nullopt;
  const uint64_t rows = ngram_rows_per_block(*row);
  return ObjectSize{.bytes = base::round_up(static_cast<uint64_t>(shape[0]), rows) / rows * kAlignment};
}

std::optional<ObjectSize> integers_size(Encoding encoding, std::span<const int64_t> shape) {
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || static_cast<uint64_t>(shape[1]) > kLargest) {
    return std::nullopt;
  }
  const uint64_t units = base::round_up(static_cast<uint64_t>(shape[1]), kIntUnitInputs) / kIntUnitInputs;
  const uint64_t unit_bytes = kIntUnitInputs / 8 * static_cast<uint64_t>(integer_bits(encoding));
  const std::optional<uint64_t> bytes = product(shape.first(1), units * unit_bytes);
  if (!bytes) return std::nullopt;
  return ObjectSize{.bytes = *bytes};
}

}  // namespace

std::string_view encoding_name(Encoding encoding) {
  return traits(encoding).name;
}

std::optional<Encoding> encoding_from_name(std::string_view name) {
  for (const EncodingTraits& entry : kEncodings) {
    if (entry.name == name) return entry.encoding;
  }
  return std::nullopt;
}

std::string describe_encoding(const Object& object) {
  std::string text(encoding_name(object.encoding));
  if (object.encoding != Encoding::kExpertsMixed) return text;
  const auto name = [&](int m) { return numeric::expert_format_name(object.formats[static_cast<size_t>(m)]); };
  return fmt::format("{} ({}, {}, {})", text, name(0), name(1), name(2));
}

bool is_experts(Encoding encoding) {
  return encoding == Encoding::kExpertsMixed || formats_of(encoding).has_value();
}

std::optional<numeric::ExpertFormats> formats_of(Encoding encoding) {
  const auto all = [](ExpertFormat format) { return numeric::ExpertFormats{format, format, format}; };
  switch (encoding) {
    case Encoding::kExpertsBF16:
      return all(ExpertFormat::kBF16);
    case Encoding::kExpertsNvfp4:
      return all(ExpertFormat::kNvfp4);
    case Encoding::kExpertsFp8Block:
      return all(ExpertFormat::kFp8Block);
    default:
      return std::nullopt;
  }
}

bool may_be_mixed(ExpertFormat format) {
  return format == ExpertFormat::kBF16 || numeric::is_block_format(format);
}

bool is_ngram(Encoding encoding) {
  return encoding == Encoding::kNgramF8E4M3 || encoding == Encoding::kNgramBF16;
}

int integer_bits(Encoding encoding) {
  switch (encoding) {
    case Encoding::kInt3:
      return 3;
    case Encoding::kInt4:
      return 4;
    case Encoding::kInt8:
      return 8;
    default:
      return 0;
  }
}

bool packed_words_known(Encoding encoding, std::span<const int64_t> shape, int64_t words) {
  const int64_t bits = integer_bits(encoding);
  if (bits == 0) return words == 0;
  const int64_t inputs = shape[1];
  const int64_t codes = 32 / bits;
  return words == inputs / codes + (inputs % codes != 0 ? 1 : 0) ||
         words == inputs / 32 * bits + (inputs % 32 * bits + 31) / 32;
}

uint64_t ngram_rows_per_block(uint64_t row_bytes) {
  return kAlignment / row_bytes;
}

std::optional<ObjectSize> object_size(Encoding encoding, std::span<const int64_t> shape,
                                      const numeric::ExpertFormats& formats) {
  if (is_experts(encoding)) return experts_size(formats_of(encoding).value_or(formats), shape);
  if (is_ngram(encoding)) return ngram_size(encoding, shape);
  if (integer_bits(encoding) != 0) return integers_size(encoding, shape);
  if (encoding == Encoding::kText && shape.size() != 1) return std::nullopt;
  const std::optional<uint64_t> bytes = product(shape, traits(encoding).element_bytes);
  if (!bytes) return std::nullopt;
  return ObjectSize{.bytes = *bytes};
}

numeric::ExpertRecord record_of(const Object& object) {
  std::optional<numeric::ExpertRecord> record;
  if (is_experts(object.encoding) && object.shape.size() == 3) {
    record = numeric::expert_record(object.formats, object.shape[1], object.shape[2]);
  }
  if (!record) base::internal_error(object.name, "is {} and has no records of experts", encoding_name(object.encoding));
  return *record;
}

void place_objects(std::span<Object> objects, uint64_t part_bytes) {
  uint32_t part = 0;
  uint64_t end = 0;
  for (Object& object : objects) {
    if (end > 0 && (end >= part_bytes || object.bytes > part_bytes - end)) {
      ++part;
      end = 0;
    }
    object.part = part;
    object.offset = end;
    end = base::round_up(end + object.bytes, kAlignment);
  }
}

std::vector<uint64_t> part_sizes(std::span<const Object> objects) {
  std::vector<uint64_t> sizes;
  for (const Object& object : objects) {
    if (object.part >= sizes.size()) sizes.resize(object.part + size_t{1});
    uint64_t& size = sizes[object.part];
    size = std::max(size, base::round_up(object.offset + object.bytes, kAlignment));
  }
  return sizes;
}

std::string part_name(uint32_t part) {
  return fmt::format("part-{:05}.bin", part);
}

std::string_view group_name(Group group) {
  static constexpr std::array<std::string_view, kGroups> kNames = {"experts", "n-gram", "embeddings", "dense",
                                                                   "draft",   "vision", "texts"};
  return kNames[static_cast<size_t>(group)];
}

Group object_group(const Object& object) {
  const std::string_view name = object.name;
  if (object.encoding == Encoding::kText) return Group::kTexts;
  if (name.starts_with("mtp.")) return Group::kDraft;
  if (name.starts_with("model.visual.")) return Group::kVision;
  if (name.find(".mlp.experts") != std::string_view::npos) return Group::kExperts;
  if (name.find(".ngram_embedding") != std::string_view::npos) return Group::kNgram;
  if (name.ends_with("embed_tokens.weight") || name.starts_with("lm_head.")) return Group::kEmbeddings;
  return Group::kDense;
}

}  // namespace tandem::artifact
