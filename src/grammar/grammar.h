// Grammars that an answer must follow: JSON schemas, tool calls in the models' form, and EBNF (docs/grammar.md).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace tandem::grammar {

class Automaton;
class StateCache;
class Vocabulary;

// A compiled grammar. Immutable to its users and thread-safe; inside it remembers states and masks that answers have
// come through, up to kCacheBytes a vocabulary, and forgets them all when there are more.
class Grammar {
 public:
  static constexpr size_t kCacheBytes = size_t{64} << 20;

  explicit Grammar(Automaton automaton);
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  const Automaton& automaton() const { return *automaton_; }
  // The memory of states for this vocabulary; a new one where the old one is full. For Matcher.
  std::shared_ptr<StateCache> cache(const std::shared_ptr<const Vocabulary>& vocabulary) const;

 private:
  struct Caches;
  std::unique_ptr<const Automaton> automaton_;
  std::unique_ptr<Caches> caches_;
};

struct SchemaOptions {
  std::string source = "schema";  // how errors call the schema; the path of the fault follows
  // Also line breaks with up to 40 blanks of indentation; otherwise single blanks after , and : at most.
  bool pretty = true;
  // Keywords that are not supported are passed over instead of refused.
  bool loose = false;
  int leading_newlines = 0;  // that may come first: up to 4
};

// Any value that holds under the schema, as JSON text. Throws base::Error{kBadInput} whose source is the JSON path of
// the fault ("schema.properties.a.pattern"): an unsupported keyword, a schema that no value satisfies, or one that
// exceeds the limits.
std::shared_ptr<const Grammar> compile_json_schema(const base::Json& schema, const SchemaOptions& options = {});

// Any JSON object.
std::shared_ptr<const Grammar> compile_json_object(const SchemaOptions& options = {});

// The EBNF that llama.cpp's grammars use (docs/grammar.md). Throws base::Error{kBadInput}, source "grammar", with the
// line of the fault.
std::shared_ptr<const Grammar> compile_ebnf(std::string_view text, int leading_newlines = 0);

struct ToolGrammar {
  std::string name;
  base::Json parameters;  // the schema of its arguments; null: none
  bool strict = false;    // what is not supported in the schema is refused rather than passed over
};

struct ToolCallOptions {
  enum class Mode {
    kAuto,      // any text; <tool_call> begins a call, which is constrained from there on
    kRequired,  // at least one call, and nothing before it
  };
  std::vector<ToolGrammar> tools;
  Mode mode = Mode::kAuto;
  std::string only;      // the one tool that may be called; empty: each
  bool parallel = true;  // several calls may follow one another
  // kAuto: in place of any text, JSON that holds under this schema, or calls and nothing before them.
  std::optional<base::Json> content{};
  std::string content_source = "schema";  // how errors call it
  int leading_newlines = 0;
};

// Throws base::Error{kBadInput}; the source is "tools[2].parameters.properties.a.pattern" or such.
std::shared_ptr<const Grammar> compile_tool_calls(const ToolCallOptions& options);

}  // namespace tandem::grammar
