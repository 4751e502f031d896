#include "grammar/text_rules.h"

#include <algorithm>
#include <fmt/format.h>

#include "text/utf8.h"

namespace tandem::grammar {

namespace {

struct ShortEscape {
  char32_t character;
  char letter;
};
constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                         {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

constexpr bool is_unlimited(Counter counter) {
  return counter.need == 0 && counter.left == kNoLimit;
}

int encode_utf8(char32_t c, uint8_t* out) {
  const auto tail = [c](int shift) { return static_cast<uint8_t>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  if (c < 0x800) {
    out[0] = static_cast<uint8_t>(0xC0 | (c >> 6));
    out[1] = tail(0);
    return 2;
  }
  if (c < 0x10000) {
    out[0] = static_cast<uint8_t>(0xE0 | (c >> 12));
    out[1] = tail(6);
    out[2] = tail(0);
    return 3;
  }
  out[0] = static_cast<uint8_t>(0xF0 | (c >> 18));
  out[1] = tail(12);
  out[2] = tail(6);
  out[3] = tail(0);
  return 4;
}

void hex_digits(AutomatonBuilder& builder, NodeId from, std::string_view digits, NodeId to) {
  for (const char c : digits) {
    const auto byte = static_cast<uint8_t>(c);
    builder.bytes(from, byte, byte, to);
    if (c >= 'A' && c <= 'F') {
      const auto small = static_cast<uint8_t>(c - 'A' + 'a');
      builder.bytes(from, small, small, to);
    }
  }
}

constexpr std::string_view kHex = "0123456789ABCDEF";

// Two hexadecimal digits.
void hex_pair(AutomatonBuilder& builder, NodeId from, NodeId to) {
  const NodeId middle = builder.add_node(builder.owner(from));
  hex_digits(builder, from, kHex, middle);
  hex_digits(builder, middle, kHex, to);
}

// What follows a backslash in JSON: one character, of which a surrogate pair makes one.
void add_escapes(AutomatonBuilder& builder, NodeId from, NodeId to) {
  const RuleId rule = builder.owner(from);
  for (const char c : std::string_view("\"\\/bfnrt")) {
    builder.bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
  }
  const NodeId unicode = builder.literal(from, "u");
  const NodeId two = builder.add_node(rule), last_two = builder.add_node(rule);
  hex_digits(builder, unicode, "0123456789ABCEF", two);
  hex_digits(builder, two, kHex, last_two);
  hex_pair(builder, last_two, to);
  // D000 … D7FF are characters, D800 … DBFF begin a pair.
  const NodeId after_d = builder.add_node(rule);
  hex_digits(builder, unicode, "D", after_d);
  hex_digits(builder, after_d, "01234567", last_two);
  const NodeId high = builder.add_node(rule), high_end = builder.add_node(rule);
  hex_digits(builder, after_d, "89AB", high);
  hex_pair(builder, high, high_end);
  const NodeId low = builder.literal(high_end, "\\u");
  const NodeId low_d = builder.add_node(rule), low_end = builder.add_node(rule);
  hex_digits(builder, low, "D", low_d);
  hex_digits(builder, low_d, "CDEF", low_end);
  hex_pair(builder, low_end, to);
}

// The states from which any printable text leads on: the largest set that no printable character leaves.
std::vector<bool> takes_any_text(const std::vector<CharDfa::State>& states) {
  std::vector<bool> takes(states.size(), true);
  std::vector<std::vector<uint32_t>> sources(states.size());
  std::vector<uint32_t> unchecked;
  for (uint32_t i = 0; i < states.size(); ++i) {
    for (const CharDfa::Edge& edge : states[i].edges) sources[edge.target].push_back(i);
    unchecked.push_back(i);
  }
  while (!unchecked.empty()) {
    const uint32_t state = unchecked.back();
    unchecked.pop_back();
    if (!takes[state]) continue;
    CharSet stays = {{0, 0x1F}};
    for (const char32_t c : {U'"', U'\\', U'<', U'>'}) stays.push_back({c, c});
    for (const CharDfa::Edge& edge : states[state].edges) {
      if (takes[edge.target]) stays.push_back({edge.low, edge.high});
    }
    takes[state] = inverted(stays).empty();
    if (!takes[state]) unchecked.insert(unchecked.end(), sources[state].begin(), sources[state].end());
  }
  return takes;
}

}  // namespace

void CharacterWriter::add(NodeId from, char32_t low, char32_t high, NodeId to) {
  if (spelling_ == Spelling::kRaw) return utf8(from, low, high, to);
  for (; low <= high && low < 0x20; ++low) escaped(from, low, to);
  for (const char32_t c : {U'"', U'\\'}) {
    if (low > c || high < c) continue;
    if (low < c) utf8(from, low, c - 1, to);
    escaped(from, c, to);
    low = c + 1;
  }
  if (low <= high) utf8(from, low, high, to);
}

void CharacterWriter::escaped(NodeId from, char32_t c, NodeId to) {
  const auto* found =
      std::find_if(std::begin(kShortEscapes), std::end(kShortEscapes), [c](ShortEscape e) { return e.character == c; });
  std::string text = found != std::end(kShortEscapes) ? std::string{'\\', found->letter}
                                                      : fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  ByteRange ranges[6];
  for (size_t i = 0; i < text.size(); ++i) ranges[i] = {static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i])};
  sequence(from, ranges, static_cast<int>(text.size()), to);
}

// Characters of one length in bytes whose bytes vary independently of each other become one chain of ranges.
void CharacterWriter::utf8(NodeId from, char32_t low, char32_t high, NodeId to) {
  struct Piece {
    char32_t low, high;
  };
  std::vector<Piece> pieces;
  constexpr Piece kLengths[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
  for (const Piece length : kLengths) {
    const Piece piece = {std::max(low, length.low), std::min(high, length.high)};
    if (piece.low <= piece.high) pieces.push_back(piece);
  }
  while (!pieces.empty()) {
    Piece piece = pieces.back();
    pieces.pop_back();
    uint8_t first[4], last[4];
    const int count = encode_utf8(piece.low, first);
    bool split = false;
    for (int i = 1; i < count && !split; ++i) {
      const char32_t tail = (char32_t{1} << (6 * i)) - 1;
      if ((piece.low & ~tail) == (piece.high & ~tail)) continue;
      if ((piece.low & tail) != 0) {
        pieces.push_back({(piece.low | tail) + 1, piece.high});
        pieces.push_back({piece.low, piece.low | tail});
        split = true;
      } else if ((piece.high & tail) != tail) {
        pieces.push_back({piece.high & ~tail, piece.high});
        pieces.push_back({piece.low, (piece.high & ~tail) - 1});
        split = true;
      }
    }
    if (split) continue;
    encode_utf8(piece.high, last);
    ByteRange ranges[4];
    for (int i = 0; i < count; ++i) ranges[i] = {first[i], last[i]};
    sequence(from, ranges, count, to);
  }
}

void CharacterWriter::sequence(NodeId from, const ByteRange* ranges, int count, NodeId to) {
  // From the end, so that common endings are shared. A key holds six bytes at most: three ranges, or the text of an
  // escape, whose bytes are equal in pairs.
  NodeId target = to;
  uint64_t key = 1;
  for (int i = count - 1; i > 0; --i) {
    const bool single = spelling_ == Spelling::kJson && ranges[i].low == ranges[i].high;
    key = single ? (key << 9) | 0x100 | ranges[i].low : (key << 17) | (uint64_t{ranges[i].low} << 8) | ranges[i].high;
    const auto [known, added] = inner_.emplace(std::pair{to, key}, 0);
    if (added) {
      known->second = builder_.add_node(builder_.owner(from));
      builder_.bytes(known->second, ranges[i].low, ranges[i].high, target);
    }
    target = known->second;
  }
  builder_.bytes(from, ranges[0].low, ranges[0].high, target);
}

RuleId any_string_rule(AutomatonBuilder& builder, Counter length) {
  const bool counted = !is_unlimited(length);
  const RuleId rule = builder.add_rule("a string", 0, length);
  const NodeId body = builder.add_node(rule), end = builder.add_node(rule);
  const NodeId character = counted ? builder.add_node(rule) : body;
  builder.literal(builder.start(rule), "\"", body);
  if (counted) {
    builder.count(body, character);
    const NodeId closing = builder.add_node(rule);
    builder.done(body, closing);
    builder.literal(closing, "\"", end);
  } else {
    builder.literal(body, "\"", end);
  }
  builder.ends(end);
  CharacterWriter writer(builder, Spelling::kRaw);
  writer.add(character, 0x20, '"' - 1, body);
  writer.add(character, '"' + 1, '\\' - 1, body);
  writer.add(character, '\\' + 1, 0x10FFFF, body);
  add_escapes(builder, builder.literal(character, "\\"), body);
  builder.text_loop(character, counted ? TextLoop::kCounted : TextLoop::kFree);
  return rule;
}

RuleId string_rule(AutomatonBuilder& builder, const CharDfa& strings, Spelling spelling, Counter length) {
  const bool counted = !is_unlimited(length);
  const RuleId rule = builder.add_rule("a string", 0, length);
  if (strings.nothing()) return rule;
  const NodeId end = builder.add_node(rule);
  builder.ends(end);
  const auto& states = strings.states();
  std::vector<NodeId> nodes;
  for (size_t i = 0; i < states.size(); ++i) nodes.push_back(builder.add_node(rule));
  const std::string_view quote = spelling == Spelling::kJson ? "\"" : "";
  builder.literal(builder.start(rule), quote, nodes[0]);
  CharacterWriter writer(builder, spelling);
  const std::vector<bool> any_text = takes_any_text(states);
  for (uint32_t i = 0; i < states.size(); ++i) {
    NodeId character = nodes[i];
    NodeId closing = nodes[i];
    if (counted) {
      character = builder.add_node(rule);
      builder.count(nodes[i], character);
      if (states[i].accepts) {
        closing = builder.add_node(rule);
        builder.done(nodes[i], closing);
      }
    }
    if (states[i].accepts) builder.literal(closing, quote, end);
    for (const CharDfa::Edge& edge : states[i].edges) writer.add(character, edge.low, edge.high, nodes[edge.target]);
    if (any_text[i]) builder.text_loop(character, counted ? TextLoop::kCounted : TextLoop::kFree);
  }
  return rule;
}

std::string json_quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto* found = std::find_if(std::begin(kShortEscapes), std::end(kShortEscapes),
                                     [c](ShortEscape e) { return e.character == static_cast<unsigned char>(c); });
    if (found != std::end(kShortEscapes)) {
      result += {'\\', found->letter};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      result += c;
    }
  }
  return result + "\"";
}

}  // namespace tandem::grammar
