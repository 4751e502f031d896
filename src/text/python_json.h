// JSON text exactly as Python's json.dumps(value, ensure_ascii=False) prints it: that is what the models saw in
// training.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace tandem::text {

// ", " and ": " between items, keys in their order, floats as Python's repr.
std::string python_json(const base::Json& value);

// `text` as the inside of a JSON string, without the quotes. May be used on a text piece by piece: a character needs
// no neighbour, and bytes from 0x80 on are copied.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace tandem::text
