#include "grammar/formats.h"

#include <utility>

namespace tandem::grammar {

namespace {

// RFC 3339; the 29th of February in leap years alone.
#define TANDEM_DATE                                                 \
  "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|"       \
  "(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|" \
  "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|"                     \
  "(?:[02468][048]|[13579][26])00)-02-29)"
#define TANDEM_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
// RFC 3986 without IP literals in brackets.
#define TANDEM_PATH_CHARACTER "(?:[A-Za-z0-9._~:@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"
#define TANDEM_QUERY "(?:[A-Za-z0-9._~:@!$&'()*+,;=/?-]|%[0-9A-Fa-f]{2})*"
#define TANDEM_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,29}[A-Za-z0-9])?"
#define TANDEM_OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define TANDEM_GROUP "[0-9A-Fa-f]{1,4}"

constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", "^" TANDEM_DATE "$"},
    {"time", "^" TANDEM_TIME "$"},
    {"date-time", "^" TANDEM_DATE "T" TANDEM_TIME "$"},
    {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    {"email", "^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" TANDEM_LABEL
              "(?:\\." TANDEM_LABEL ")*$"},
    {"hostname", "^" TANDEM_LABEL "(?:\\." TANDEM_LABEL "){0,6}$"},
    {"ipv4", "^" TANDEM_OCTET "(?:\\." TANDEM_OCTET "){3}$"},
    {"ipv6",
     "^(?:(?:" TANDEM_GROUP ":){7}" TANDEM_GROUP "|(?:" TANDEM_GROUP ":){1,7}:|(?:" TANDEM_GROUP ":){1,6}:" TANDEM_GROUP
     "|(?:" TANDEM_GROUP ":){1,5}(?::" TANDEM_GROUP "){1,2}|(?:" TANDEM_GROUP ":){1,4}(?::" TANDEM_GROUP
     "){1,3}|(?:" TANDEM_GROUP ":){1,3}(?::" TANDEM_GROUP "){1,4}|(?:" TANDEM_GROUP ":){1,2}(?::" TANDEM_GROUP
     "){1,5}|" TANDEM_GROUP ":(?::" TANDEM_GROUP "){1,6}|:(?:(?::" TANDEM_GROUP "){1,7}|:))$"},
    {"uri",
     "^[A-Za-z][A-Za-z0-9+.-]*:(?://(?:(?:[A-Za-z0-9._~:!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*@)?"
     "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*(?::\\d*)?(?:/" TANDEM_PATH_CHARACTER "*)*"
     "|/(?:" TANDEM_PATH_CHARACTER "+(?:/" TANDEM_PATH_CHARACTER "*)*)?"
     "|" TANDEM_PATH_CHARACTER "+(?:/" TANDEM_PATH_CHARACTER "*)*)"
     "(?:\\?" TANDEM_QUERY ")?(?:#" TANDEM_QUERY ")?$"},
};

#undef TANDEM_DATE
#undef TANDEM_TIME
#undef TANDEM_PATH_CHARACTER
#undef TANDEM_QUERY
#undef TANDEM_LABEL
#undef TANDEM_OCTET
#undef TANDEM_GROUP

}  // namespace

std::optional<std::string_view> format_pattern(std::string_view format) {
  for (const auto& [name, pattern] : kFormats) {
    if (name == format) return pattern;
  }
  return std::nullopt;
}

}  // namespace tandem::grammar
