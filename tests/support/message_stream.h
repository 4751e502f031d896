// A strict reader of the event stream of Anthropic's /v1/messages: what a client may rely on is checked event by event.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace tandem::test {

struct MessageStreamReport {
  base::Json message = base::Json::object();  // the deltas put together: what an answer in one piece looks like
  base::Json error = nullptr;                 // of an error event, which must be the last
  std::vector<std::string> events;            // their names in order, comments left out
  std::vector<std::string> faults;            // each with the number of its event; none: the stream is well-formed
};

// Checks that: every event has a name that is its data's type; message_start comes first and once, with an empty
// message; blocks open and close one after the other with indices that count from 0; deltas stand inside the open block
// and are of its kind; thinking ends with one signature; a tool's input is one whole JSON object, a duplicate key or a
// rest refused; one message_delta with a stop_reason and the usage comes after the last block, then message_stop and
// nothing else, or an error at any place that ends the stream.
MessageStreamReport read_message_stream(std::string_view stream);

}  // namespace tandem::test
