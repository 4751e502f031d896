// The body of POST /v1/completions: any bytes become a request or a base::Error of bad input, and every token of a
// prompt is one of the vocabulary.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "demo_model.h"
#include "serve/fields.h"
#include "serve/http/errors.h"
#include "serve/openai/completion_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  try {
    const serve::CompletionRequest asked = serve::completion_request(
        serve::parse_object(std::string(reinterpret_cast<const char*>(data), size)), fuzz::demo_tokenizer());
    fuzz::require(asked.choices() >= 1);
    for (const serve::CompletionPrompt& prompt : asked.prompts) {
      for (const int32_t id : prompt.tokens) fuzz::require(id >= 0 && id < fuzz::demo_tokenizer().size());
    }
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::kBadInput) std::abort();
    (void)serve::openai_error(serve::api_error(error));
  }
  return 0;
}
