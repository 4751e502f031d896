#include "text/printable.h"

#include "base/json.h"

namespace tandem::text {

std::string printable(std::string_view text) {
  constexpr size_t kShownBytes = 40;
  std::string shown(text.substr(0, kShownBytes));
  if (text.size() > kShownBytes) shown += "...";
  return base::Json(std::move(shown)).dump(-1, ' ', true, base::Json::error_handler_t::replace);
}

}  // namespace tandem::text
