// What an object of an artifact is: its encoding, its shape, and where its bytes stand.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "numeric/expert_record.h"

namespace tandem::artifact {

inline constexpr uint64_t kAlignment = 4096;

// What the bytes of an object are.
enum class Encoding : uint8_t {
  kBF16,  // plain, C order, as are the next five
  kF32,
  kF16,
  kI64,
  kF8E4M3,
  kU8,
  // A small file of the checkpoint under its own name (config.json, tokenizer.json …); the shape is [bytes].
  kText,
  // One record an expert, records at a fixed stride; gate and up are [inner, hidden], down is [hidden, inner].
  kExpertsBF16,      // gate, up, down row-major
  kExpertsNvfp4,     // gate, up, down in units of 16 rows x 64 inputs (numeric/nvfp4.h); scalars in NAME.scalars
  kExpertsFp8Block,  // E4M3 codes of gate, up, down in units (numeric/fp8_units.h), then BF16 grids of 128 x 128 blocks
  kExpertsMixed,     // gate, up, down each BF16 or in units of a GGUF format, as Object::formats tells
  // Rows of the n-gram table, as many whole rows to a 4 KiB block as fit.
  kNgramF8E4M3,
  kNgramBF16,
  // Codes of a matrix [rows, inputs] in units of 128 inputs (numeric/int_group.h), row-major.
  kInt3,
  kInt4,
  kInt8,
};

// "bf16", as the directory spells it.
std::string_view encoding_name(Encoding encoding);
std::optional<Encoding> encoding_from_name(std::string_view name);
bool is_experts(Encoding encoding);
// The formats of all three matrices where the encoding tells them by itself: of experts that are not mixed.
std::optional<numeric::ExpertFormats> formats_of(Encoding encoding);
// Whether matrices of the format may stand in mixed experts: those that need nothing beside them.
bool may_be_mixed(numeric::ExpertFormat format);
bool is_ngram(Encoding encoding);
// Bits of a code where the encoding is one of integer codes, else 0.
int integer_bits(Encoding encoding);

struct Object {
  std::string name;  // the checkpoint's tensor name; for experts and n-gram rows the name of the module
  Encoding encoding = Encoding::kBF16;
  std::vector<int64_t> shape;  // experts: [experts, inner, hidden]; n-gram rows: [rows, width]; else the tensor's
  uint32_t part = 0;
  uint64_t offset = 0;        // within the part, a multiple of kAlignment
  uint64_t bytes = 0;         // of the object, without the padding to the next
  uint64_t record_bytes = 0;  // experts: the stride of a record, a multiple of kAlignment; else 0
  // Experts: of gate, up and down.
  numeric::ExpertFormats formats{};
  int64_t packed_words = 0;  // integer codes: the int32 words of a row in the source, which tell its packing; else 0
  std::string xxh3_128;      // of the object's bytes
};

// "bf16", "experts_mixed (iq3_s, iq3_s, iq4_nl)".
std::string describe_encoding(const Object& object);

// How the records of experts are laid out. Throws base::Error{kInternal} for an object of another kind.
numeric::ExpertRecord record_of(const Object& object);

// Bytes that an encoding and a shape ask for.
struct ObjectSize {
  uint64_t bytes = 0;
  uint64_t record_bytes = 0;
};
// Nothing where the encoding cannot hold the shape: a negative dimension, a rank that it does not have, experts that
// are not whole units, a row wider than a block, or more than 2^60 bytes.
// `formats` counts for mixed experts only.
std::optional<ObjectSize> object_size(Encoding encoding, std::span<const int64_t> shape,
                                      const numeric::ExpertFormats& formats = {});

// Whether a source can have packed a row of integer codes in so many words: in words of floor(32 / bits) codes or as
// one stream of bits. For other encodings only 0 is.
bool packed_words_known(Encoding encoding, std::span<const int64_t> shape, int64_t words);

// Whole rows of the n-gram table in a block of kAlignment bytes.
uint64_t ngram_rows_per_block(uint64_t row_bytes);

// Sets part and offset of every object, in their order: each at a multiple of kAlignment, in the part before it where
// it still fits into `part_bytes`, else at the start of a new part. An object larger than a part has a part of its own.
void place_objects(std::span<Object> objects, uint64_t part_bytes);
// The bytes of each part's file: up to the end of its last object, padded to kAlignment.
std::vector<uint64_t> part_sizes(std::span<const Object> objects);

// "part-00000.bin".
std::string part_name(uint32_t part);

// What an object is for, for summaries.
enum class Group : uint8_t { kExperts, kNgram, kEmbeddings, kDense, kDraft, kVision, kTexts };
inline constexpr int kGroups = 7;
std::string_view group_name(Group group);
Group object_group(const Object& object);

}  // namespace tandem::artifact
