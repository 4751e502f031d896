// The tools of an Anthropic request: which the model is told of, where, and which it may call.
//
// Tools change while a conversation goes on. Only what stands in `tools` without defer_loading is shown in front of the
// conversation; every other tool is shown where a message makes it known, so that what comes before stays as it was and
// needs not be read again.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "base/json.h"

namespace tandem::serve {

class ToolSet {
 public:
  // The request's `tools`: null or an array. A tool without input_schema whose type is not "custom" (web_search_…,
  // bash_…, computer_…) is known to Anthropic's models alone and is left out. Throws base::Error{kBadInput}.
  explicit ToolSet(const base::Json& tools);

  // A message makes a tool of the list known, or brings one with its definition: from now on it may be called. Each
  // gives the text that tells the model; a definition stands in it only once, however often the tool is named.
  std::string add(const std::string& name);
  std::string add_definition(const base::Json& tool, const std::string& path);
  std::string remove(const std::string& name);

  // Null where there are none; otherwise arrays in OpenAI's form (serve/tools.h).
  base::Json shown_in_front() const;
  base::Json callable() const;

 private:
  struct Tool {
    base::Json definition;
    bool shown = false;     // the model has seen the definition
    size_t call_order = 0;  // 0: may not be called
  };
  Tool& put(base::Json definition);
  std::string announce(Tool& tool);

  base::Json front_ = base::Json::array();
  std::map<std::string, Tool> tools_;
  size_t next_order_ = 1;
};

}  // namespace tandem::serve
