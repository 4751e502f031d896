// The body of POST /api/chat: any bytes become a request or a base::Error of bad input.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "serve/fields.h"
#include "serve/ollama/chat.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    (void)tandem::serve::ollama_chat(
        tandem::serve::parse_object(std::string(reinterpret_cast<const char*>(data), size)));
  } catch (const tandem::base::Error& error) {
    if (error.kind() != tandem::base::ErrorKind::kBadInput) std::abort();
    (void)tandem::serve::ollama_error(tandem::serve::api_error(error));
  }
  return 0;
}
