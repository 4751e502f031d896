// EBNF as llama.cpp's grammars write it (docs/grammar.md).
#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/leading_newlines.h"
#include "grammar/text_rules.h"
#include "text/utf8.h"

namespace tandem::grammar {

namespace {

constexpr size_t kMaxEbnfBytes = size_t{1} << 20;
constexpr int kMaxParentheses = 200;
constexpr uint32_t kMaxEbnfRepetitions = 1'000'000;
constexpr uint32_t kMaxEbnfDepth = 1'000;  // of rules in rules

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class EbnfParser {
 public:
  explicit EbnfParser(std::string_view text) : text_(text), builder_("grammar") {
    if (text.size() > kMaxEbnfBytes) {
      base::bad_input("grammar", "has {} bytes; at most {} are supported", text.size(), kMaxEbnfBytes);
    }
    const size_t valid = text::utf8_valid_prefix(text, 0);
    if (valid < text.size()) base::bad_input("grammar", "is not UTF-8 at byte {}", valid);
  }

  Automaton compile(int leading_newlines) {
    skip_space();
    while (more()) rule();
    for (const auto& [name, known] : rules_) {
      if (known.line != 0) base::bad_input("grammar", "line {}: there is no rule {}", known.line, name);
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) base::bad_input("grammar", "there is no rule root");
    const RuleId answer = after_newlines(builder_, root->second.rule, leading_newlines);
    return std::move(builder_).finish(answer, kMaxEbnfDepth);
  }

 private:
  struct KnownRule {
    RuleId rule = 0;
    int line = 0;  // where it was first used, while it is not defined; else 0
  };
  // A part of a rule, with nodes of its own at both ends.
  struct Piece {
    NodeId begin = 0, end = 0;
  };

  [[noreturn]] void fail(std::string_view what) const { base::bad_input("grammar", "line {}: {}", line_, what); }
  std::string unexpected() const {
    const auto byte = static_cast<unsigned char>(peek());
    if (!more()) return "unexpected end";
    return byte > 0x20 && byte < 0x7F ? fmt::format("unexpected {}", peek())
                                      : fmt::format("unexpected byte {:#04x}", byte);
  }
  bool more() const { return at_ < text_.size(); }
  char peek() const { return more() ? text_[at_] : '\0'; }
  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  void skip_space() {
    while (more()) {
      if (peek() == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n') {
        line_ += peek() == '\n';
        ++at_;
      } else {
        break;
      }
    }
  }

  std::string_view name() {
    const size_t begin = at_;
    while (more() && is_name_character(peek())) ++at_;
    if (at_ == begin) fail("expected the name of a rule");
    return text_.substr(begin, at_ - begin);
  }

  KnownRule& known(std::string_view name) {
    const auto [at, added] = rules_.emplace(name, KnownRule());
    if (added) at->second = {builder_.add_rule(fmt::format("rule {}", name), 1), line_};
    return at->second;
  }

  void rule() {
    const std::string_view own = name();
    const bool defined = rules_.contains(own) && rules_.find(own)->second.line == 0;
    if (defined) fail(fmt::format("rule {} is defined twice", own));
    KnownRule& rule = known(own);
    rule.line = 0;
    skip_space();
    if (!take("::=")) fail("expected ::=");
    skip_space();
    owner_ = rule.rule;
    const Piece piece = choice(0);
    builder_.skip(builder_.start(rule.rule), piece.begin);
    builder_.ends(piece.end);
    if (more() && !at_rule()) fail(unexpected());
  }

  // Whether NAME ::= comes next.
  bool at_rule() const {
    size_t at = at_;
    while (at < text_.size() && is_name_character(text_[at])) ++at;
    if (at == at_) return false;
    while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\t')) ++at;
    return text_.substr(at).starts_with("::=");
  }

  Piece new_piece() { return {builder_.add_node(owner_), builder_.add_node(owner_)}; }

  Piece choice(int depth) {
    if (depth > kMaxParentheses) fail(fmt::format("parentheses nest deeper than {}", kMaxParentheses));
    const Piece piece = new_piece();
    do {
      skip_space();
      NodeId at = piece.begin;
      while (more() && peek() != '|' && peek() != ')' && !at_rule()) at = repeated(at, depth);
      builder_.skip(at, piece.end);
    } while (take("|"));
    return piece;
  }

  // One item with its quantifiers after `from`; gives the node behind it.
  NodeId repeated(NodeId from, int depth) {
    Piece piece = item(depth);
    skip_space();
    int quantifiers = 0;
    while (const auto counter = quantifier()) {
      if (++quantifiers > kMaxParentheses) fail("too many quantifiers on one item");
      piece = repeat(piece, *counter);
      skip_space();
    }
    builder_.skip(from, piece.begin);
    return piece.end;
  }

  Piece repeat(const Piece& piece, const Counter& counter) {
    const Piece result = new_piece();
    if (counter.left == kNoLimit && counter.need <= 1) {
      builder_.skip(result.begin, piece.begin);
      builder_.skip(piece.end, piece.begin);
      builder_.skip(piece.end, result.end);
      if (counter.need == 0) builder_.skip(result.begin, result.end);
    } else if (counter == Counter{0, 1}) {
      builder_.skip(result.begin, piece.begin);
      builder_.skip(piece.end, result.end);
      builder_.skip(result.begin, result.end);
    } else {
      const RuleId body = builder_.add_rule("a repetition", 1), loop = builder_.add_rule("a repetition", 1, counter);
      builder_.skip(builder_.start(body), piece.begin);
      builder_.ends(piece.end);
      const NodeId once = builder_.add_node(loop), more = builder_.add_node(loop), end = builder_.add_node(loop);
      builder_.count(builder_.start(loop), once);
      if (counter.need == 0) builder_.skip(builder_.start(loop), end);
      builder_.call(once, body, more);
      builder_.count(more, once);
      builder_.done(more, end);
      builder_.ends(end);
      builder_.call(result.begin, loop, result.end);
    }
    return result;
  }

  std::optional<Counter> quantifier() {
    if (take("*")) return Counter{0, kNoLimit};
    if (take("+")) return Counter{1, kNoLimit};
    if (take("?")) return Counter{0, 1};
    if (!take("{")) return std::nullopt;
    skip_space();
    Counter counter;
    counter.need = number();
    counter.left = counter.need;
    skip_space();
    if (take(",")) {
      skip_space();
      counter.left = peek() == '}' ? kNoLimit : number();
      skip_space();
    }
    if (!take("}")) fail("expected } after the number of repetitions");
    if (counter.need > counter.left) fail("{m,n} has m above n");
    return counter;
  }

  uint32_t number() {
    if (peek() < '0' || peek() > '9') fail("expected a number of repetitions");
    uint32_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<uint32_t>(text_[at_++] - '0');
      if (value > kMaxEbnfRepetitions) fail(fmt::format("more than {} repetitions", kMaxEbnfRepetitions));
    }
    return value;
  }

  Piece item(int depth) {
    if (take("(")) {
      const Piece piece = choice(depth + 1);
      if (!take(")")) fail("expected )");
      return piece;
    }
    const Piece piece = new_piece();
    if (take("\"")) {
      literal(piece);
    } else if (take("[")) {
      characters(piece, character_class());
    } else if (take(".")) {
      characters(piece, all_characters());
    } else if (is_name_character(peek())) {
      builder_.call(piece.begin, known(name()).rule, piece.end);
    } else {
      fail(unexpected());
    }
    return piece;
  }

  void literal(const Piece& piece) {
    NodeId at = piece.begin;
    while (!take("\"")) {
      const char32_t c = character();
      const NodeId next = builder_.add_node(owner_);
      CharacterWriter(builder_, Spelling::kRaw).add(at, c, c, next);
      at = next;
    }
    builder_.skip(at, piece.end);
  }

  void characters(const Piece& piece, const CharSet& set) {
    CharacterWriter writer(builder_, Spelling::kRaw);
    for (const CharRange range : set) writer.add(piece.begin, range.low, range.high, piece.end);
  }

  CharSet character_class() {
    const bool inverse = take("^");
    CharSet set;
    while (!take("]")) {
      const char32_t low = character();
      char32_t high = low;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = character();
        if (low > high) fail("a range of characters is out of order");
      }
      set.push_back({low, high});
    }
    return inverse ? inverted(set) : normalised(std::move(set));
  }

  char32_t character() {
    if (!more() || peek() == '\n') fail("a literal or class does not end");
    if (!take("\\")) {
      const text::Utf8Char next = text::utf8_at(text_, at_);
      at_ += static_cast<size_t>(next.bytes);
      return next.code_point;
    }
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hexadecimal(2);
      case 'u':
        return hexadecimal(4);
      case 'U':
        return hexadecimal(8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<unsigned char>(c);
      default:
        fail("an unknown escape");
    }
  }

  char32_t hexadecimal(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("expected a hexadecimal digit");
      ++at_;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) fail("an escape names no character");
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  AutomatonBuilder builder_;
  std::map<std::string, KnownRule, std::less<>> rules_;
  RuleId owner_ = 0;  // the rule that is being read
};

}  // namespace

std::shared_ptr<const Grammar> compile_ebnf(std::string_view text, int leading_newlines) {
  return std::make_shared<const Grammar>(EbnfParser(text).compile(leading_newlines));
}

}  // namespace tandem::grammar
