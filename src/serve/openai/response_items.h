// The input of a Responses request as a conversation, and the form in which a client carries reasoning back.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/message.h"

namespace tandem::serve {

// instructions and input: a string, or items (docs/api.md, "Responses"), as a conversation that the template accepts.
// Throws base::Error{kBadInput} that names the place, such as input[3].content[1].type, for what cannot be understood
// and for references to stored items. Pictures are still in the messages.
std::vector<text::Message> response_conversation(const base::Json& body);

// The `encrypted_content` of a reasoning item: base64 of the text behind a prefix, so that a client that stores no
// reasoning gives it back. Nothing about it is secret.
std::string carried_reasoning(std::string_view reasoning);
// The text again; absent where another server wrote this.
std::optional<std::string> reasoning_from_carried(std::string_view carried);

}  // namespace tandem::serve
