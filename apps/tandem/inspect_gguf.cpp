#include "inspect_gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <string>

#include "base/json.h"
#include "base/units.h"
#include "checkpoint/gguf.h"

namespace tandem::app {

namespace {

using checkpoint::Gguf;
using checkpoint::GgufMetadata;
using checkpoint::GgufTensor;
using checkpoint::GgufType;
using checkpoint::GgufValue;

struct TypeSummary {
  size_t tensors = 0;
  uint64_t bytes = 0;
};

std::map<numeric::GgmlType, TypeSummary> summarise_types(const Gguf& gguf) {
  std::map<numeric::GgmlType, TypeSummary> types;
  for (const GgufTensor& tensor : gguf.tensors()) {
    TypeSummary& type = types[tensor.type];
    ++type.tensors;
    type.bytes += tensor.bytes;
  }
  return types;
}

// One value as JSON; long arrays (a vocabulary, its merges) only by their length.
base::Json value_json(const GgufMetadata& metadata, const std::string& key, const GgufValue& value) {
  constexpr uint64_t kShown = 64;
  if (value.is_array && value.count > kShown) {
    return {{"array", checkpoint::gguf_type_name(value.type)}, {"count", value.count}};
  }
  if (value.type == GgufType::kString) {
    return value.is_array ? base::Json(value.strings) : base::Json(value.strings[0]);
  }
  if (value.type == GgufType::kBool) {
    if (!value.is_array) return metadata.boolean(key);
    base::Json bools = base::Json::array();
    for (const std::byte byte : value.numbers) bools.push_back(byte != std::byte{0});
    return bools;
  }
  const bool real = value.type == GgufType::kF32 || value.type == GgufType::kF64;
  if (value.is_array) return real ? base::Json(metadata.numbers(key)) : base::Json(metadata.integers(key));
  if (real) return metadata.number(key);
  return value.type == GgufType::kU64 ? base::Json(metadata.unsigned_integer(key)) : base::Json(metadata.integer(key));
}

void print_gguf_json(const Gguf& gguf, bool with_tensors) {
  base::Json answer;
  answer["gguf"] = gguf.parts().front().path.string();
  answer["version"] = gguf.parts().front().version;
  answer["parts"] = gguf.parts().size();
  answer["metadata"] = base::Json::object();
  for (const auto& [key, value] : gguf.metadata().pairs()) {
    answer["metadata"][key] = value_json(gguf.metadata(), key, value);
  }
  answer["types"] = base::Json::object();
  for (const auto& [type, summary] : summarise_types(gguf)) {
    answer["types"][std::string(numeric::ggml_type(type).name)] = {{"tensors", summary.tensors},
                                                                   {"bytes", summary.bytes}};
  }
  if (with_tensors) {
    answer["tensors"] = base::Json::array();
    for (const GgufTensor& tensor : gguf.tensors()) {
      answer["tensors"].push_back({{"name", tensor.name},
                                   {"type", numeric::ggml_type(tensor.type).name},
                                   {"shape", tensor.shape},
                                   {"part", tensor.part},
                                   {"offset", tensor.offset},
                                   {"bytes", tensor.bytes}});
    }
  }
  fmt::print("{}\n", answer.dump(-1, ' ', false, base::Json::error_handler_t::replace));
}

void print_gguf_text(const Gguf& gguf, bool with_tensors) {
  fmt::print("{}: GGUF version {}, {} tensors in {} part{}\n", gguf.parts().front().path.string(),
             gguf.parts().front().version, gguf.tensors().size(), gguf.parts().size(),
             gguf.parts().size() == 1 ? "" : "s");
  for (const auto& [key, value] : gguf.metadata().pairs()) fmt::print("{:<48} {}\n", key, describe(value));
  uint64_t total = 0;
  for (const auto& [type, summary] : summarise_types(gguf)) {
    total += summary.bytes;
    const numeric::GgmlTraits& traits = numeric::ggml_type(type);
    fmt::print("{:<8} {:>12}  {:>5} tensor{}  {:.4g} bits a weight{}\n", traits.name, base::format_bytes(summary.bytes),
               summary.tensors, summary.tensors == 1 ? " " : "s", traits.bits_per_element(),
               traits.decode == nullptr ? ", no decoder" : "");
  }
  fmt::print("{:<8} {:>12}  {:>5} tensor{}\n", "all", base::format_bytes(total), gguf.tensors().size(),
             gguf.tensors().size() == 1 ? "" : "s");
  if (!with_tensors) return;
  for (const GgufTensor& tensor : gguf.tensors()) {
    fmt::print("{} {} {} bytes at {}+{}\n", tensor.name, describe(tensor), tensor.bytes,
               gguf.parts()[tensor.part].path.filename().string(), tensor.offset);
  }
}

}  // namespace

void inspect_gguf(const std::filesystem::path& path, bool json, bool with_tensors) {
  const Gguf gguf = Gguf::open(path);
  if (json) {
    print_gguf_json(gguf, with_tensors);
  } else {
    print_gguf_text(gguf, with_tensors);
  }
}

}  // namespace tandem::app
