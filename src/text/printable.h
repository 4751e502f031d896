// Text from outside, made fit for an error's one line.
#pragma once

#include <string>
#include <string_view>

namespace tandem::text {

// As a JSON string of ASCII characters, cut after 40 bytes.
std::string printable(std::string_view text);

}  // namespace tandem::text
