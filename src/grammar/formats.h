// The formats of strings that JSON schemas may name.
#pragma once

#include <optional>
#include <string_view>

namespace tandem::grammar {

// The pattern that strings of the format match; nothing for an unknown one.
std::optional<std::string_view> format_pattern(std::string_view format);

}  // namespace tandem::grammar
