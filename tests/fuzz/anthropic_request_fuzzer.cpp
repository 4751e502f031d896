// The body of POST /v1/messages: any bytes become a request or a base::Error of bad input, and of a request no tool's
// definition is shown more often than it was sent.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "serve/anthropic/error_form.h"
#include "serve/anthropic/messages_request.h"
#include "serve/fields.h"

namespace {

// What conversations may be larger than their bodies by: marks around blocks and lines in place of some.
constexpr size_t kMostBytesAByte = 64;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  try {
    const auto read =
        serve::messages_request(serve::parse_object(std::string(reinterpret_cast<const char*>(data), size)));
    size_t shown = 0;
    for (const auto& message : read.request.messages) shown += text::content_text(message).size();
    if (shown > kMostBytesAByte * size) std::abort();
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::kBadInput) std::abort();
    (void)serve::anthropic_error(serve::api_error(error));
  }
  return 0;
}
