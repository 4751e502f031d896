// Pictures and films in requests, for a model that reads text only.
#pragma once

#include <cstdint>
#include <vector>

#include "text/message.h"

namespace tandem::serve {

// What stands in the conversation for each picture or film, which the model can't see.
inline constexpr const char* kOmittedMedia = "[image omitted: this model reads text only]";

// Puts that line in the place of each and returns how many there were; their addresses are never opened. Throws
// base::Error{kBadInput} where `strict` is set.
int64_t omit_media(std::vector<text::Message>& messages, bool strict);

}  // namespace tandem::serve
