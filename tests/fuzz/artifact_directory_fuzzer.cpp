// Input: tandem.json. Its first line is replaced by a right header for what follows, or the mutation would end at the
// checksum; an input that begins with another line than a header is read as it is.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "artifact/directory.h"
#include "base/error.h"
#include "base/hash.h"

namespace {

using namespace tandem;

void require(bool condition) {
  if (!condition) std::abort();
}

std::string with_header(std::string_view text) {
  const size_t line_end = text.find('\n');
  if (!text.starts_with('{') || line_end == std::string_view::npos) return std::string(text);
  const std::string_view body = text.substr(line_end + 1);
  const base::Json header = {{"format", "tandem"},
                             {"version", 1},
                             {"directory_bytes", body.size()},
                             {"directory_xxh3_128", base::xxh3_128_hex(std::as_bytes(std::span(body)))}};
  return header.dump() + "\n" + std::string(body);
}

// What every reader relies on without checking it again.
void check(const artifact::Directory& directory) {
  for (const artifact::Object& object : directory.objects) {
    require(!object.name.empty());
    require(object.part < directory.part_bytes.size());
    const uint64_t part = directory.part_bytes[object.part];
    require(object.offset % artifact::kAlignment == 0 && object.offset <= part && object.bytes <= part - object.offset);
    const auto size = artifact::object_size(object.encoding, object.shape, object.formats);
    require(size && size->bytes == object.bytes && size->record_bytes == object.record_bytes);
    if (artifact::is_experts(object.encoding)) {
      require(object.bytes == static_cast<uint64_t>(object.shape[0]) * object.record_bytes);
    }
    (void)artifact::object_group(object);
  }
  // Written again, it reads the same.
  const artifact::Directory again = artifact::parse_directory(artifact::write_directory(directory), "fuzz");
  require(again.objects.size() == directory.objects.size() && again.part_bytes == directory.part_bytes);
}

void parse(std::string_view text) {
  try {
    check(artifact::parse_directory(text, "fuzz"));
  } catch (const base::Error& error) {
    require(error.kind() == base::ErrorKind::kBadInput);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  parse(text);
  parse(with_header(text));
  return 0;
}
