#include "text/python_json.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>

namespace tandem::text {

namespace {

// The shortest digits that give the same double; a plain number where the point lies within 16 digits, otherwise with
// an exponent of at least two digits (float.__repr__).
std::string python_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), std::fabs(value), std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c != '.') digits += c;
  }
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  const int point = exponent + 1;  // value = 0.DIGITS * 10^point
  const auto count = static_cast<int>(digits.size());
  std::string out = std::signbit(value) ? "-" : "";
  if (point > 16 || point <= -4) {
    out += digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (point <= 0) return out + "0." + std::string(static_cast<size_t>(-point), '0') + digits;
  if (point >= count) return out + digits + std::string(static_cast<size_t>(point - count), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(point)) + "." + digits.substr(static_cast<size_t>(point));
}

void append(std::string& out, const base::Json& value);

void append_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_object(std::string& out, const base::Json& object) {
  out += '{';
  const char* separator = "";
  for (const auto& [key, member] : object.items()) {
    out += separator;
    separator = ", ";
    append_string(out, key);
    out += ": ";
    append(out, member);
  }
  out += '}';
}

void append_array(std::string& out, const base::Json& array) {
  out += '[';
  const char* separator = "";
  for (const auto& element : array) {
    out += separator;
    separator = ", ";
    append(out, element);
  }
  out += ']';
}

void append(std::string& out, const base::Json& value) {
  switch (value.type()) {
    case base::Json::value_t::object:
      return append_object(out, value);
    case base::Json::value_t::array:
      return append_array(out, value);
    case base::Json::value_t::string:
      return append_string(out, value.get_ref<const std::string&>());
    case base::Json::value_t::number_float:
      out += python_float(value.get<double>());
      return;
    default:
      out += value.dump();
      return;  // null, true, false and whole numbers print the same
  }
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<int>(c));
        } else {
          out += c;
        }
    }
  }
}

std::string python_json(const base::Json& value) {
  std::string out;
  append(out, value);
  return out;
}

}  // namespace tandem::text
