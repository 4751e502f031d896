// The body of POST /v1/responses: any bytes become a request, whose echo is bounded, or a base::Error of bad input; and
// any text for a custom tool's arguments becomes an input.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "demo_model.h"
#include "serve/fields.h"
#include "serve/http/errors.h"
#include "serve/openai/response_items.h"
#include "serve/openai/response_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const serve::ResponseRequest asked = serve::response_request(serve::parse_object(text));
    fuzz::require(!asked.request.messages.empty());
    fuzz::require(serve::dump(asked.echo).size() <= 64 << 10);
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::kBadInput) std::abort();
    (void)serve::openai_error(serve::api_error(error));
  }
  (void)serve::custom_tool_input(text);
  (void)serve::reasoning_from_carried(text);
  return 0;
}
