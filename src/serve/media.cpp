#include "serve/media.h"

#include "base/error.h"

namespace tandem::serve {

int64_t omit_media(std::vector<text::Message>& messages, bool strict) {
  int64_t omitted = 0;
  for (text::Message& message : messages) {
    for (text::ContentPart& part : message.content) {
      if (part.kind == text::ContentPart::Kind::kText) continue;
      if (strict) base::bad_input("messages", "hold an image or a video, and this model reads text only");
      part = {.kind = text::ContentPart::Kind::kText, .text = kOmittedMedia};
      ++omitted;
    }
  }
  return omitted;
}

}  // namespace tandem::serve
