// Where an artifact's weights came from: docs/artifact.md, "Provenance".
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "convert/source.h"

namespace tandem::convert {

// A file that the conversion read.
struct SourceFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;
};

// {"repository", "revision"}, null where they are not known.
base::Json origin_json(const Origin& origin);
base::Json provenance_json(const Origin& origin, const std::string& recipe, base::Json choices, const std::string& date,
                           const std::vector<SourceFile>& files);

// Now in UTC as ISO 8601, or the time that SOURCE_DATE_EPOCH gives: with it two conversions of one source are equal
// byte for byte.
std::string conversion_date();

}  // namespace tandem::convert
