// Which Tandem this is: for --version, bench reports and the provenance of artifacts.
#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

// "0.1.0".
std::string_view version();
// "0.1.0 (RelWithDebInfo, GNU 12.2.0)".
std::string build_description();

}  // namespace tandem::base
