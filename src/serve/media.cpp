#include "serve/media.h"

#include "base/error.h"

namespace tandem::serve {

int64_t omit_media(std::vector<text::Message>& messages, bool strict) {
  int64_t omitted = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    for (text::ContentPart& part : messages[i].content) {
      if (part.kind == text::ContentPart::Kind::kText) continue;
      if (strict) {
        base::bad_input(fmt::format("messages[{}]", i), "holds an image or a video, and this model reads text only");
      }
      part = {.kind = text::ContentPart::Kind::kText, .text = kOmittedMedia};
      ++omitted;
    }
  }
  return omitted;
}

}  // namespace tandem::serve
