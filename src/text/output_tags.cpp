#include "text/output_tags.h"

#include <algorithm>

namespace tandem::text {

namespace {

// Between tags that belong together. The template writes one line break; more than this is no call.
constexpr size_t kMaxBlanks = 32;
constexpr size_t kMaxNameBytes = 512;

size_t blanks(std::string_view text) {
  return std::min(text.find_first_not_of(" \t\r\n"), text.size());
}

// The best of what several tags say about the same text.
Match either(Match a, Match b) {
  return std::max(a, b);
}

TagMatch after_blanks(std::string_view text, size_t begin, auto match_rest) {
  const std::string_view rest = text.substr(begin);
  const size_t skipped = blanks(rest);
  if (skipped > kMaxBlanks) return {};
  if (skipped == rest.size()) return {Match::kPartial, 0, {}};
  TagMatch found = match_rest(rest.substr(skipped));
  found.bytes += begin + skipped;
  return found;
}

Match match_next_in_call(std::string_view text) {
  Match best = Match::kNo;
  for (const char* tag : {"<parameter=", "</function>", "</tool_call>"}) {
    best = either(best, match_literal(text, tag).match);
  }
  return best;
}

}  // namespace

TagMatch match_literal(std::string_view text, std::string_view literal) {
  if (text.starts_with(literal)) return {Match::kYes, literal.size(), {}};
  return {literal.starts_with(text) ? Match::kPartial : Match::kNo, 0, {}};
}

TagMatch match_named(std::string_view text, std::string_view opening) {
  const TagMatch head = match_literal(text, opening);
  if (head.match != Match::kYes) return head;
  const std::string_view name = text.substr(opening.size());
  const size_t end = name.find_first_of("<>\r\n");
  const size_t length = std::min(end, name.size());
  if (length > kMaxNameBytes || length == 0)
    return {end == 0 ? Match::kNo : length == 0 ? Match::kPartial : Match::kNo, 0, {}};
  if (end == std::string_view::npos) return {Match::kPartial, 0, {}};
  if (name[end] != '>') return {};
  return {Match::kYes, opening.size() + end + 1, name.substr(0, end)};
}

TagMatch match_call(std::string_view text) {
  const TagMatch opening = match_literal(text, "<tool_call>");
  if (opening.match != Match::kYes) return opening;
  return after_blanks(text, opening.bytes, [](std::string_view rest) { return match_named(rest, "<function="); });
}

TagMatch match_value_end(std::string_view text) {
  const size_t line_break = text.starts_with("\r\n") ? 2 : text.starts_with('\n') ? 1 : 0;
  const std::string_view tag = text.substr(line_break);
  if (tag.empty() || text == "\r") return {Match::kPartial, 0, {}};
  if (const TagMatch closing = match_literal(tag, "</parameter>"); closing.match == Match::kYes) {
    const TagMatch next = after_blanks(tag, closing.bytes,
                                       [](std::string_view rest) { return TagMatch{match_next_in_call(rest), 0, {}}; });
    return {next.match, line_break + closing.bytes, {}};
  } else if (closing.match == Match::kPartial) {
    return closing;
  }
  const TagMatch function = match_literal(tag, "</function>");
  if (function.match != Match::kYes) return function;
  const TagMatch call =
      after_blanks(tag, function.bytes, [](std::string_view rest) { return match_literal(rest, "</tool_call>"); });
  return {call.match, line_break, {}};
}

}  // namespace tandem::text
