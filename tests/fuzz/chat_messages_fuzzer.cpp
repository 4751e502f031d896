// Any bytes as the body of a chat request, {"messages": [...], "tools": [...]}: refused with an Error, or rendered so
// that the caller's text makes no token of its own.
#include "base/error.h"
#include "demo_model.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const base::Json body = base::parse_json({reinterpret_cast<const char*>(data), size}, "body");
    const auto messages = text::messages_from_json(base::json_member(body, "messages"));
    const auto segments = fuzz::demo_template().render(messages, base::json_member(body, "tools"), {});
    const auto& tokenizer = fuzz::demo_tokenizer();
    size_t of_template = 0, in_prompt = 0;
    for (const text::Segment& segment : segments) {
      if (!segment.control) continue;
      for (const int32_t id : tokenizer.encode(segment.text, text::AddedTokens::kParse))
        of_template += tokenizer.is_added(id);
    }
    for (const int32_t id : text::ChatTemplate::encode(tokenizer, segments)) in_prompt += tokenizer.is_added(id);
    fuzz::require(of_template == in_prompt);
  } catch (const base::Error&) {
  }
  return 0;
}
