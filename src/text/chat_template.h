// The chat template of the Qwen3.8 family, rendered natively (docs/text.md).
//
// The layout is fixed in code; the wording of the tools block and of the reasoning efforts is read from the model's own
// Jinja template, because it differs between checkpoints. Rendering yields segments rather than one string: control
// text is marked, so that "<|im_end|>" typed by a user is encoded as plain text and never becomes the control token.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/message.h"
#include "text/template_wording.h"
#include "text/tokenizer.h"

namespace tandem::text {

struct Segment {
  std::string text;
  bool control = false;  // true: written by the template, its added tokens are parsed; false: plain text of the caller
};

// Immutable; all members may be called from several threads.
class ChatTemplate {
 public:
  // `jinja` is chat_template.jinja (or tokenizer_config.json's chat_template). Throws base::Error{kBadInput} where it
  // is not of this family (the tools block or the markers it must contain are not found).
  static ChatTemplate from_jinja(std::string_view jinja, const std::string& source);

  // `tools` is null or an array of tool objects as the request gave them. Throws base::Error{kBadInput} for what the
  // template refuses: no messages, no user message, a system message that is not first or holds media.
  std::vector<Segment> render(const std::vector<Message>& messages, const base::Json& tools,
                              const TemplateOptions& options) const;

  // The segments' texts in one string, as the Jinja template would print them.
  static std::string join(const std::vector<Segment>& segments);
  // One text for the tokenizer: words may cross the border of a control segment, added tokens only stand within one.
  static std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::vector<Segment>& segments);

 private:
  explicit ChatTemplate(TemplateWording wording) : wording_(std::move(wording)) {}

  TemplateWording wording_;
};

}  // namespace tandem::text
