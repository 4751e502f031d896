#include "grammar/pattern.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "grammar/automaton.h"
#include "text/utf8.h"

namespace tandem::grammar {

namespace {

constexpr size_t kMaxPatternCharacters = 8192;
constexpr int kMaxGroupDepth = 100;
constexpr uint32_t kMaxRepetitions = 20'000;

CharSet digits() {
  return {{'0', '9'}};
}

CharSet word_characters() {
  return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
}

CharSet spaces() {
  return {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

CharSet not_line_ends() {
  return inverted({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
}

struct Term {
  enum class Kind { kSet, kSequence, kChoice, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSequence;
  CharSet set;
  std::vector<size_t> parts;  // of the arena
  uint32_t least = 0, most = 0;
};

class PatternParser {
 public:
  PatternParser(std::string_view pattern, const std::string& source) : source_(source) {
    for (size_t at = 0; at < pattern.size();) {
      const text::Utf8Char next = text::utf8_at(pattern, at);
      if (next.kind != text::Utf8Kind::kValid) base::bad_input(source, "is not UTF-8 at byte {}", at);
      text_.push_back(next.code_point);
      at += static_cast<size_t>(next.bytes);
    }
    if (text_.size() > kMaxPatternCharacters) {
      base::bad_input(source, "has {} characters; at most {} are supported", text_.size(), kMaxPatternCharacters);
    }
  }

  CharDfa compile() {
    const size_t root = choice(0);
    if (at_ < text_.size()) fail("has an unmatched )");
    CharNfa nfa(source_);
    const uint32_t start = nfa.add_node(), accept = nfa.add_node();
    nfa.characters(start, all_characters(), start);
    nfa.characters(accept, all_characters(), accept);
    nfa.skip(emit(nfa, root, start), accept);
    return nfa.determinise(start, accept);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { base::bad_input(source_, "{} at character {}", what, at_); }
  bool more() const { return at_ < text_.size(); }
  char32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0'; }
  bool take(char32_t c) {
    if (!more() || peek() != c) return false;
    ++at_;
    return true;
  }
  size_t store(Term term) {
    terms_.push_back(std::move(term));
    return terms_.size() - 1;
  }

  size_t choice(int depth) {
    if (depth > kMaxGroupDepth) {
      base::bad_input(source_, "nests groups deeper than {} at character {}", kMaxGroupDepth, at_);
    }
    Term result;
    result.kind = Term::Kind::kChoice;
    do {
      result.parts.push_back(sequence(depth));
    } while (take('|'));
    return store(std::move(result));
  }

  size_t sequence(int depth) {
    Term result;
    while (more() && peek() != '|' && peek() != ')') result.parts.push_back(quantified(depth));
    return store(std::move(result));
  }

  size_t quantified(int depth) {
    size_t item = atom(depth);
    std::optional<std::pair<uint32_t, uint32_t>> counts = quantifier();
    if (!counts) return item;
    if (terms_[item].kind == Term::Kind::kBegin || terms_[item].kind == Term::Kind::kEnd) {
      fail("repeats ^ or $");
    }
    take('?');  // lazy: the same strings
    if (quantifier()) fail("has a quantifier after a quantifier");
    Term repeat;
    repeat.kind = Term::Kind::kRepeat;
    repeat.parts = {item};
    std::tie(repeat.least, repeat.most) = *counts;
    return store(std::move(repeat));
  }

  std::optional<std::pair<uint32_t, uint32_t>> quantifier() {
    if (take('*')) return std::pair{0u, kNoLimit};
    if (take('+')) return std::pair{1u, kNoLimit};
    if (take('?')) return std::pair{0u, 1u};
    if (!more() || peek() != '{') return std::nullopt;
    ++at_;
    const uint32_t least = number();
    uint32_t most = least;
    if (take(',')) most = more() && peek() == '}' ? kNoLimit : number();
    if (!take('}')) fail("has a { that is not {m}, {m,} or {m,n}");
    if (least > most) fail("has a {m,n} with m above n");
    return std::pair{least, most};
  }

  uint32_t number() {
    if (!more() || peek() < '0' || peek() > '9') fail("lacks a number");
    uint32_t value = 0;
    while (more() && peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<uint32_t>(text_[at_++] - '0');
      if (value > kMaxRepetitions) {
        base::bad_input(source_, "repeats more than {} times at character {}", kMaxRepetitions, at_);
      }
    }
    return value;
  }

  size_t atom(int depth) {
    Term term;
    term.kind = Term::Kind::kSet;
    const char32_t c = text_[at_++];
    switch (c) {
      case '^':
        term.kind = Term::Kind::kBegin;
        break;
      case '$':
        term.kind = Term::Kind::kEnd;
        break;
      case '.':
        term.set = not_line_ends();
        break;
      case '(':
        return group(depth);
      case '[':
        term.set = character_class();
        break;
      case '\\':
        term.set = escape(false);
        break;
      case '*':
      case '+':
      case '?':
      case '{':
        --at_;
        fail("has a quantifier with nothing before it");
      case ']':
      case '}':
        --at_;
        fail("has a bracket that nothing opens");
      default:
        term.set = {{c, c}};
    }
    return store(std::move(term));
  }

  size_t group(int depth) {
    if (take('?')) {
      if (!take(':')) {
        if (peek() != '<' || peek(1) == '=' || peek(1) == '!') {
          fail("has look-around or flags, which are not supported,");
        }
        while (more() && peek() != '>') ++at_;  // a name
        if (!take('>')) fail("has a group whose name does not end");
      }
    }
    const size_t inner = choice(depth + 1);
    if (!take(')')) fail("lacks a )");
    return inner;
  }

  // What follows a backslash.
  CharSet escape(bool in_class) {
    if (!more()) fail("ends in a backslash");
    const char32_t c = text_[at_++];
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return inverted(digits());
      case 'w':
        return word_characters();
      case 'W':
        return inverted(word_characters());
      case 's':
        return spaces();
      case 'S':
        return inverted(spaces());
      case 't':
        return {{'\t', '\t'}};
      case 'n':
        return {{'\n', '\n'}};
      case 'v':
        return {{0x0B, 0x0B}};
      case 'f':
        return {{0x0C, 0x0C}};
      case 'r':
        return {{'\r', '\r'}};
      case '0':
        if (more() && peek() >= '0' && peek() <= '9') fail("has an octal escape");
        return {{0, 0}};
      case 'x':
        return one(hexadecimal(2));
      case 'u':
        return one(unicode());
      case 'b':
        if (in_class) return {{0x08, 0x08}};
        break;
      default:
        break;
    }
    if ((c >= '1' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      fail(fmt::format("has \\{}, which is not supported,", static_cast<char>(c)));
    }
    return {{c, c}};
  }

  static CharSet one(char32_t c) { return {{c, c}}; }

  char32_t unicode() {
    if (take('{')) {
      char32_t value = 0;
      int count = 0;
      while (more() && peek() != '}' && count++ < 8) value = value * 16 + hex_digit();
      if (count == 0 || !take('}') || value > 0x10FFFF) fail("has a malformed \\u{...}");
      return value;
    }
    const char32_t first = hexadecimal(4);
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first > 0xDBFF || !take('\\') || !take('u')) fail("has half of a surrogate pair");
    const char32_t second = hexadecimal(4);
    if (second < 0xDC00 || second > 0xDFFF) fail("has half of a surrogate pair");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  char32_t hexadecimal(int count) {
    char32_t value = 0;
    for (int i = 0; i < count; ++i) value = value * 16 + hex_digit();
    return value;
  }

  char32_t hex_digit() {
    const char32_t c = peek();
    if (!more()) fail("lacks a hexadecimal digit");
    ++at_;
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    --at_;
    fail("lacks a hexadecimal digit");
  }

  CharSet character_class() {
    const bool inverse = take('^');
    CharSet set;
    while (true) {
      if (!more()) fail("has a [ that is not closed");
      if (take(']')) break;
      const CharSet first = class_item();
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        const CharSet last = class_item();
        if (first.size() != 1 || last.size() != 1 || first[0].low != first[0].high || last[0].low != last[0].high) {
          fail("has a range between classes");
        }
        if (first[0].low > last[0].low) fail("has a range out of order");
        set.push_back({first[0].low, last[0].low});
      } else {
        set.insert(set.end(), first.begin(), first.end());
      }
    }
    return inverse ? inverted(set) : normalised(std::move(set));
  }

  CharSet class_item() {
    if (!more()) fail("has a [ that is not closed");
    const char32_t c = text_[at_++];
    return c == '\\' ? escape(true) : one(c);
  }

  // Adds the term after `from` and gives the node behind it.
  uint32_t emit(CharNfa& nfa, size_t index, uint32_t from) {
    const Term& term = terms_[index];
    const uint32_t to = nfa.add_node();
    switch (term.kind) {
      case Term::Kind::kSet:
        nfa.characters(from, normalised(term.set), to);
        break;
      case Term::Kind::kBegin:
        nfa.skip(from, to, CharNfa::Assert::kBegin);
        break;
      case Term::Kind::kEnd:
        nfa.skip(from, to, CharNfa::Assert::kEnd);
        break;
      case Term::Kind::kSequence: {
        uint32_t at = from;
        for (const size_t part : term.parts) at = emit(nfa, part, at);
        nfa.skip(at, to);
        break;
      }
      case Term::Kind::kChoice:
        for (const size_t part : term.parts) nfa.skip(emit(nfa, part, from), to);
        break;
      case Term::Kind::kRepeat:
        repeat(nfa, term, from, to);
        break;
    }
    return to;
  }

  void repeat(CharNfa& nfa, const Term& term, uint32_t from, uint32_t to) {
    uint32_t at = from;
    for (uint32_t i = 0; i < term.least; ++i) at = emit(nfa, term.parts[0], at);
    if (term.most == kNoLimit) {
      const uint32_t loop = nfa.add_node();
      nfa.skip(at, loop);
      nfa.skip(emit(nfa, term.parts[0], loop), loop);
      nfa.skip(loop, to);
      return;
    }
    for (uint32_t i = term.least; i < term.most; ++i) {
      nfa.skip(at, to);
      at = emit(nfa, term.parts[0], at);
    }
    nfa.skip(at, to);
  }

  const std::string& source_;
  std::u32string text_;
  size_t at_ = 0;
  std::vector<Term> terms_;
};

}  // namespace

CharDfa compile_pattern(std::string_view pattern, const std::string& source) {
  return PatternParser(pattern, source).compile();
}

const CharDfa& PatternCache::get(const std::string& pattern, const std::string& source) {
  const auto known = patterns_.find(pattern);
  if (known != patterns_.end()) return known->second;
  return patterns_.emplace(pattern, compile_pattern(pattern, source)).first->second;
}

}  // namespace tandem::grammar
