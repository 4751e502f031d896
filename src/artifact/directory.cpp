#include "artifact/directory.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <unordered_set>

#include "base/error.h"
#include "base/hash.h"
#include "base/units.h"

namespace tandem::artifact {

namespace {

using base::bad_input;
using base::Json;

constexpr size_t kLongestHeader = 4096;
constexpr size_t kLongestName = 1024;
constexpr size_t kMostParts = 100'000;
constexpr size_t kLargestRank = 16;

uint64_t natural(const Json& object, const char* key, const std::string& source) {
  const int64_t value = base::json_int(object, key, source);
  if (value < 0) bad_input(source, "\"{}\" is {}, below 0", key, value);
  return static_cast<uint64_t>(value);
}

bool is_checksum(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The header line checked against what follows it; returns the directory's text.
std::string_view checked_body(std::string_view text, const std::string& source, int& version) {
  const size_t line_end = text.substr(0, kLongestHeader).find('\n');
  if (line_end == std::string_view::npos || !text.starts_with('{')) {
    bad_input(source, "is not the directory of a Tandem artifact: no header line in its first {} bytes",
              std::min(kLongestHeader, text.size()));
  }
  const Json header = base::parse_json(text.substr(0, line_end), source);
  if (!header.is_object() || base::json_member(header, "format") != Json("tandem")) {
    bad_input(source, "is not the directory of a Tandem artifact: its header does not say \"format\": \"tandem\"");
  }
  const int64_t found = base::json_int(header, "version", source);
  if (found < 1 || found > kFormatVersion) {
    bad_input(source, "has format version {}; this build reads versions 1 to {}", found, kFormatVersion);
  }
  version = static_cast<int>(found);
  const std::string_view body = text.substr(line_end + 1);
  const uint64_t bytes = natural(header, "directory_bytes", source);
  if (bytes != body.size()) {
    bad_input(source, "has {} bytes of directory where its header says {}", body.size(), bytes);
  }
  const std::string expected = base::json_string(header, "directory_xxh3_128", source);
  const std::string actual = base::xxh3_128_hex(std::as_bytes(std::span(body)));
  if (actual != expected) {
    bad_input(source, "is corrupt: the directory's checksum is {} where its header says {}", actual, expected);
  }
  return body;
}

std::vector<int64_t> parse_shape(const Json& json, const std::string& source) {
  if (!json.is_array() || json.size() > kLargestRank) {
    bad_input(source, "\"shape\" is not a list of at most {} numbers", kLargestRank);
  }
  std::vector<int64_t> shape;
  for (const Json& dimension : json) {
    if (!dimension.is_number_integer())
      bad_input(source, "\"shape\" holds a {}, not a whole number", dimension.type_name());
    if (dimension.is_number_unsigned() && dimension.get<uint64_t>() > uint64_t{INT64_MAX}) {
      bad_input(source, "\"shape\" holds {}, too large a dimension", dimension.get<uint64_t>());
    }
    shape.push_back(dimension.get<int64_t>());
  }
  return shape;
}

// Of gate, up and down: told by the encoding, or listed for mixed experts.
numeric::ExpertFormats parse_formats(const Json& json, Encoding encoding, const std::string& source) {
  if (encoding != Encoding::kExpertsMixed) return formats_of(encoding).value_or(numeric::ExpertFormats{});
  const Json& names = base::json_member(json, "formats");
  numeric::ExpertFormats formats{};
  if (!names.is_array() || names.size() != formats.size()) {
    bad_input(source, "\"formats\" is not a list of {} names", formats.size());
  }
  for (size_t m = 0; m < formats.size(); ++m) {
    const std::optional<numeric::ExpertFormat> format =
        names[m].is_string() ? numeric::expert_format_from_name(names[m].get<std::string>()) : std::nullopt;
    if (!format || !may_be_mixed(*format)) {
      bad_input(source, "\"formats\" holds {}, which is no format of mixed experts", names[m].dump().substr(0, 40));
    }
    formats[m] = *format;
  }
  return formats;
}

Object parse_object(const Json& json, size_t index, const std::string& file) {
  const std::string position = fmt::format("{}: object {}", file, index);
  if (!json.is_object()) bad_input(position, "is not a JSON object");
  Object object;
  object.name = base::json_string(json, "name", position);
  if (object.name.empty() || object.name.size() > kLongestName) {
    bad_input(position, "has a name of {} bytes; 1 to {} are allowed", object.name.size(), kLongestName);
  }
  const std::string source = fmt::format("{}: object {}", file, object.name);
  const std::string encoding = base::json_string(json, "encoding", source);
  const std::optional<Encoding> known = encoding_from_name(encoding);
  if (!known) bad_input(source, "has the encoding \"{}\", which this build does not know", encoding);
  object.encoding = *known;
  object.shape = parse_shape(base::json_member(json, "shape"), source);
  const uint64_t part = natural(json, "part", source);
  if (part >= kMostParts) bad_input(source, "stands in part {}; at most {} parts are allowed", part, kMostParts);
  object.part = static_cast<uint32_t>(part);
  object.offset = natural(json, "offset", source);
  object.bytes = natural(json, "bytes", source);
  object.record_bytes = json.contains("record_bytes") ? natural(json, "record_bytes", source) : 0;
  object.xxh3_128 = base::json_string(json, "xxh3_128", source);
  if (!is_checksum(object.xxh3_128)) bad_input(source, "\"xxh3_128\" is not 32 hexadecimal digits");
  object.formats = parse_formats(json, object.encoding, source);
  const std::optional<ObjectSize> size = object_size(object.encoding, object.shape, object.formats);
  if (!size) {
    bad_input(source, "has the shape [{}], which the encoding {} cannot hold", fmt::join(object.shape, ", "), encoding);
  }
  if (size->bytes != object.bytes || size->record_bytes != object.record_bytes) {
    bad_input(source, "has {} bytes in records of {} where {} [{}] asks for {} in records of {}", object.bytes,
              object.record_bytes, encoding, fmt::join(object.shape, ", "), size->bytes, size->record_bytes);
  }
  object.packed_words = base::json_int(json, "packed_words", 0, source);
  if (!packed_words_known(object.encoding, object.shape, object.packed_words)) {
    bad_input(source, "has rows packed in {} words, which no packing of {} [{}] has", object.packed_words, encoding,
              fmt::join(object.shape, ", "));
  }
  return object;
}

std::vector<uint64_t> parse_parts(const Json& json, const std::string& source) {
  if (!json.is_array() || json.size() > kMostParts) {
    bad_input(source, "\"parts\" is not a list of at most {} parts", kMostParts);
  }
  std::vector<uint64_t> bytes;
  for (const Json& part : json) {
    if (!part.is_object()) bad_input(source, "part {} is not a JSON object", bytes.size());
    const std::string name = base::json_string(part, "file", source);
    const std::string expected = part_name(static_cast<uint32_t>(bytes.size()));
    if (name != expected) bad_input(source, "part {} is named \"{}\", not {}", bytes.size(), name, expected);
    bytes.push_back(natural(part, "bytes", source));
  }
  return bytes;
}

void check_places(const Directory& directory, const std::string& source) {
  for (const Object& object : directory.objects) {
    if (object.part >= directory.part_bytes.size()) {
      bad_input(source, "object {} stands in part {} of {} parts", object.name, object.part,
                directory.part_bytes.size());
    }
    const uint64_t part_bytes = directory.part_bytes[object.part];
    if (object.offset % kAlignment != 0) {
      bad_input(source, "object {} stands at byte {}, not a multiple of {}", object.name, object.offset, kAlignment);
    }
    if (object.bytes > part_bytes || object.offset > part_bytes - object.bytes) {
      bad_input(source, "object {} ends beyond its part: bytes {} + {} of {}", object.name, object.offset, object.bytes,
                part_bytes);
    }
  }
  std::vector<uint32_t> order(directory.objects.size());
  std::iota(order.begin(), order.end(), 0);
  const auto place = [&](uint32_t index) {
    const Object& object = directory.objects[index];
    return std::tuple(object.part, object.offset, object.bytes);
  };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return place(a) < place(b); });
  for (size_t i = 1; i < order.size(); ++i) {
    const Object& before = directory.objects[order[i - 1]];
    const Object& object = directory.objects[order[i]];
    if (before.part == object.part && before.offset + before.bytes > object.offset) {
      bad_input(source, "objects {} and {} overlap: bytes {} to {} and {} to {} of part {}", before.name, object.name,
                before.offset, before.offset + before.bytes, object.offset, object.offset + object.bytes, object.part);
    }
  }
}

void check_names(const std::vector<Object>& objects, const std::string& source) {
  std::unordered_set<std::string_view> names;
  for (const Object& object : objects) {
    if (!names.insert(object.name).second) bad_input(source, "has the object {} twice", object.name);
  }
  for (const Object& object : objects) {
    if (object.encoding == Encoding::kExpertsNvfp4 && !names.contains(object.name + ".scalars")) {
      bad_input(source, "has the experts {} but not their {}.scalars", object.name, object.name);
    }
  }
}

}  // namespace

Json object_json(const Object& object) {
  Json json;
  json["name"] = object.name;
  json["encoding"] = encoding_name(object.encoding);
  json["shape"] = object.shape;
  json["part"] = object.part;
  json["offset"] = object.offset;
  json["bytes"] = object.bytes;
  if (object.record_bytes != 0) json["record_bytes"] = object.record_bytes;
  if (object.encoding == Encoding::kExpertsMixed) {
    Json formats = Json::array();
    for (const numeric::ExpertFormat format : object.formats) formats.push_back(numeric::expert_format_name(format));
    json["formats"] = std::move(formats);
  }
  if (object.packed_words != 0) json["packed_words"] = object.packed_words;
  json["xxh3_128"] = object.xxh3_128;
  return json;
}

std::string write_directory(const Directory& directory) {
  Json parts = Json::array();
  for (const uint64_t bytes : directory.part_bytes) {
    Json part;
    part["file"] = part_name(static_cast<uint32_t>(parts.size()));
    part["bytes"] = bytes;
    parts.push_back(std::move(part));
  }
  // One object a line, so that people and line tools can read a directory.
  std::string body = "{\"provenance\":" + directory.provenance.dump() + ",\n\"parts\":" + parts.dump();
  body += ",\n\"objects\":[";
  for (size_t i = 0; i < directory.objects.size(); ++i) {
    body += (i == 0 ? "\n" : ",\n") + object_json(directory.objects[i]).dump();
  }
  body += "\n]}\n";
  Json header;
  header["format"] = "tandem";
  header["version"] = directory.format_version;
  header["directory_bytes"] = body.size();
  header["directory_xxh3_128"] = base::xxh3_128_hex(std::as_bytes(std::span(body)));
  return header.dump() + "\n" + body;
}

Directory parse_directory(std::string_view text, const std::string& source) {
  Directory directory;
  const std::string_view body = checked_body(text, source, directory.format_version);
  const Json json = base::parse_json(body, source);
  if (!json.is_object()) bad_input(source, "holds a directory that is not a JSON object");
  directory.provenance = base::json_member(json, "provenance");
  directory.part_bytes = parse_parts(base::json_member(json, "parts"), source);
  const Json& objects = base::json_member(json, "objects");
  if (!objects.is_array()) bad_input(source, "\"objects\" is not a list");
  directory.objects.reserve(objects.size());
  for (const Json& object : objects) {
    directory.objects.push_back(parse_object(object, directory.objects.size(), source));
  }
  check_names(directory.objects, source);
  check_places(directory, source);
  return directory;
}

}  // namespace tandem::artifact
