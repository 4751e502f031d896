// Any bytes as chat_template.jinja: refused with an Error, or a template that renders.
#include "base/error.h"
#include "demo_model.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto chat =
        text::ChatTemplate::from_jinja({reinterpret_cast<const char*>(data), size}, "chat_template.jinja");
    const auto messages = text::messages_from_json(base::Json::parse(R"([{"role": "user", "content": "q"}])"));
    const auto segments = chat.render(messages, base::Json::parse(R"([{"name": "f"}])"), {});
    fuzz::require(!segments.empty() && segments.front().control);
  } catch (const base::Error&) {
  }
  return 0;
}
