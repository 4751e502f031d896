#include "base/version.h"

#include <fmt/format.h>

namespace tandem::base {

std::string_view version() {
  return TANDEM_VERSION;
}

std::string build_description() {
  return fmt::format("{} ({}, {})", TANDEM_VERSION, TANDEM_BUILD_TYPE, TANDEM_COMPILER);
}

}  // namespace tandem::base
