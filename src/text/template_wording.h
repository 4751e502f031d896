// What differs between the chat templates of the family, found in the template's own text.
#pragma once

#include <string>
#include <string_view>

namespace tandem::text {

struct TemplateWording {
  std::string tools_head;   // from "# Tools" to "<tools>"; each tool follows after a newline
  std::string tools_tail;   // from "\n</tools>" to the end of the block
  std::string effort_high;  // what reasoning effort "xhigh" prints; empty where the template has no efforts
  std::string effort_low;
  bool trims_every_content = false;          // also of user and tool messages, not only system and assistant
  bool tool_responses_are_no_query = false;  // a user message that is one <tool_response> block is not the last query
};

// Throws base::Error{kBadInput} with `source` where the text is no template of this family: a marker of the layout, or
// a tools block in one of the two forms (docs/text.md), is not found.
TemplateWording read_template_wording(std::string_view jinja, const std::string& source);

}  // namespace tandem::text
