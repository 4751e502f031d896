// The tags of an answer, matched against text of which more may come.
#pragma once

#include <string>
#include <string_view>

namespace tandem::text {

enum class Match {
  kNo,
  kPartial,  // as far as the text goes; what follows decides
  kYes,
};

struct TagMatch {
  Match match = Match::kNo;
  size_t bytes = 0;       // kYes: of the text, up to the tag's end
  std::string_view name;  // what stands after "=", for tags that have a name
};

// All of these look at the beginning of `text`.
TagMatch match_literal(std::string_view text, std::string_view literal);
// `opening`, a name without <, > or a line break, and ">".
TagMatch match_named(std::string_view text, std::string_view opening);
// <tool_call>, blanks, <function=NAME>
TagMatch match_call(std::string_view text);

// The end of a parameter's value: </parameter> where the next tag of the call follows, so that a value may quote the
// tag; or </function> and </tool_call>, where the model forgot to close the parameter. One line break before it belongs
// to the tag. `bytes` goes up to where the call's next tag is looked for.
TagMatch match_value_end(std::string_view text);

}  // namespace tandem::text
