#include "convert/provenance.h"

#include <charconv>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "base/error.h"
#include "base/version.h"

namespace tandem::convert {

base::Json origin_json(const Origin& origin) {
  base::Json json;
  json["repository"] = origin.repository.empty() ? base::Json() : base::Json(origin.repository);
  json["revision"] = origin.revision.empty() ? base::Json() : base::Json(origin.revision);
  return json;
}

base::Json provenance_json(const Origin& origin, const std::string& recipe, base::Json choices, const std::string& date,
                           const std::vector<SourceFile>& files) {
  base::Json source = origin_json(origin);
  source["files"] = base::Json::array();
  base::Json licences = base::Json::array();
  for (const SourceFile& file : files) {
    base::Json entry;
    entry["name"] = file.name;
    entry["bytes"] = file.bytes;
    entry["sha256"] = file.sha256;
    source["files"].push_back(std::move(entry));
    if (is_licence(file.name)) licences.push_back(file.name);
  }
  base::Json provenance;
  provenance["tool"] = "tandem " + std::string(base::version());
  provenance["recipe"] = recipe;
  provenance["choices"] = std::move(choices);
  provenance["date"] = date;
  provenance["source"] = std::move(source);
  provenance["licences"] = std::move(licences);
  return provenance;
}

std::string conversion_date() {
  std::time_t time = std::time(nullptr);
  if (const char* epoch = std::getenv("SOURCE_DATE_EPOCH"); epoch != nullptr && *epoch != '\0') {
    const std::string_view text = epoch;
    int64_t seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    // Years of four digits: up to the end of 9999.
    if (error != std::errc() || end != text.data() + text.size() || seconds < 0 || seconds > 253402300799) {
      base::bad_input("SOURCE_DATE_EPOCH", "\"{}\" is not a number of seconds since 1970", text);
    }
    time = static_cast<std::time_t>(seconds);
  }
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  char text[32];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text, length};
}

}  // namespace tandem::convert
