#include "grammar/number_rules.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"

namespace tandem::grammar {

namespace {

constexpr uint32_t kWholeDigits = 18, kFractionDigits = 17;
constexpr size_t kMaxNumberStates = 100'000;
constexpr uint64_t kMaxStep = 1'000'000'000;
constexpr uint32_t kMaxStepDigits = 17;

Decimal parse_decimal(std::string_view text) {
  Decimal result;
  if (text.starts_with('-')) {
    result.negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view digits = text.substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    text = text.substr(0, e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, point));
  if (point < text.size()) digits += text.substr(point + 1);
  long place = static_cast<long>(point) + exponent;  // digits before the point
  if (place < 0) {
    digits.insert(0, static_cast<size_t>(-place), '0');
    place = 0;
  }
  if (static_cast<size_t>(place) > digits.size()) digits.append(static_cast<size_t>(place) - digits.size(), '0');
  result.whole = digits.substr(0, static_cast<size_t>(place));
  result.fraction = digits.substr(static_cast<size_t>(place));
  result.whole.erase(0, result.whole.find_first_not_of('0'));
  while (result.fraction.ends_with('0')) result.fraction.pop_back();
  if (result.is_zero()) result.negative = false;
  return result;
}

int compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order;
  return a.fraction.compare(b.fraction);  // a shorter one that is a beginning is the smaller
}

// The digits of a magnitude, read from the left, with what of them matters.
struct Digits {
  enum class Place : uint8_t { kStart, kZero, kWhole, kPoint, kFraction };
  Place place = Place::kStart;
  int8_t low = 0, high = 0;          // how what was read compares with the bounds' digits in the same places
  uint32_t whole = 0, fraction = 0;  // digits
  uint64_t rest = 0;                 // of the division by the step
  bool zero = true;

  auto key() const { return std::tuple(place, low, high, whole, fraction, rest, zero); }
};

class MagnitudeReader {
 public:
  MagnitudeReader(const NumberRange& range, std::optional<NumberRange::Bound> low,
                  std::optional<NumberRange::Bound> high, bool zero)
      : range_(range), low_(std::move(low)), high_(std::move(high)), zero_(zero) {
    const size_t least = low_ ? low_->value.whole.size() : 0;
    const size_t most = high_ ? high_->value.whole.size() : kWholeDigits;
    whole_digits_ = range.whole ? std::max(least, most) : std::max<size_t>(least, std::min<size_t>(most, kWholeDigits));
    fraction_digits_ = range.whole ? 0 : range.step != 0 ? range.step_digits : kFractionDigits;
    const auto longer = [this](const std::optional<NumberRange::Bound>& bound) {
      if (bound && !range_.whole && range_.step == 0) {
        fraction_digits_ = std::max(fraction_digits_, bound->value.fraction.size() + 1);
      }
    };
    longer(low_);
    longer(high_);
  }

  // False where the digit can't follow.
  bool digit(Digits& at, int digit) const {
    using Place = Digits::Place;
    switch (at.place) {
      case Place::kStart:
      case Place::kWhole:
        if (at.place == Place::kStart && digit == 0) {
          at.place = Place::kZero;
          return true;
        }
        if (at.whole >= whole_digits_) return false;
        at.place = Place::kWhole;
        compare_digit(at, digit, at.whole, false);
        ++at.whole;
        break;
      case Place::kZero:
        return false;
      case Place::kPoint:
      case Place::kFraction:
        if (at.fraction >= fraction_digits_) return false;
        at.place = Place::kFraction;
        compare_digit(at, digit, at.fraction, true);
        ++at.fraction;
        break;
    }
    at.zero &= digit == 0;
    if (range_.step != 0) at.rest = (at.rest * 10 + static_cast<uint64_t>(digit)) % range_.step;
    return true;
  }

  bool point(Digits& at) const {
    if (fraction_digits_ == 0) return false;
    if (at.place != Digits::Place::kZero && at.place != Digits::Place::kWhole) return false;
    end_whole(at);
    at.place = Digits::Place::kPoint;
    at.whole = 0;  // no longer matters
    return true;
  }

  bool complete(Digits at) const {
    using Place = Digits::Place;
    if (at.place == Place::kStart || at.place == Place::kPoint) return false;
    if (at.place != Place::kFraction) end_whole(at);
    if (at.zero && !zero_) return false;
    const auto behind = [&at](int8_t order, const NumberRange::Bound& bound) {
      return order == 0 && bound.value.fraction.size() > at.fraction ? -1 : static_cast<int>(order);
    };
    if (low_) {
      const int order = behind(at.low, *low_);
      if (order < 0 || (order == 0 && low_->exclusive)) return false;
    }
    if (high_) {
      const int order = behind(at.high, *high_);
      if (order > 0 || (order == 0 && high_->exclusive)) return false;
    }
    if (range_.step == 0) return true;
    uint64_t rest = at.rest;
    for (uint32_t i = at.fraction; i < range_.step_digits; ++i) rest = rest * 10 % range_.step;
    return rest == 0;
  }

 private:
  void compare_digit(Digits& at, int digit, uint32_t index, bool fraction) const {
    const auto follow = [&](int8_t& order, const std::optional<NumberRange::Bound>& bound) {
      if (!bound || order != 0) return;
      const std::string& digits = fraction ? bound->value.fraction : bound->value.whole;
      // Whole numbers of other lengths are told apart by end_whole.
      const int own = index < digits.size() ? digits[index] - '0' : fraction ? 0 : digit;
      order = static_cast<int8_t>(digit < own ? -1 : digit > own ? 1 : 0);
    };
    follow(at.low, low_);
    follow(at.high, high_);
  }

  void end_whole(Digits& at) const {
    const auto settle = [&at](int8_t& order, const std::optional<NumberRange::Bound>& bound) {
      if (!bound || at.whole == bound->value.whole.size()) return;
      order = at.whole < bound->value.whole.size() ? -1 : 1;
    };
    settle(at.low, low_);
    settle(at.high, high_);
  }

  const NumberRange& range_;
  std::optional<NumberRange::Bound> low_, high_;
  bool zero_;
  size_t whole_digits_ = 0, fraction_digits_ = 0;
};

void add_magnitudes(AutomatonBuilder& builder, const MagnitudeReader& reader, NodeId from, NodeId end,
                    const std::string& source) {
  std::map<decltype(Digits().key()), NodeId> ids;
  std::vector<std::pair<Digits, NodeId>> found = {{Digits(), from}};
  const auto node_of = [&](const Digits& at) {
    const auto [known, added] = ids.emplace(at.key(), 0);
    if (added) {
      if (found.size() >= kMaxNumberStates) {
        base::bad_input(source, "the numbers that hold need more than {} states", kMaxNumberStates);
      }
      known->second = builder.add_node(builder.owner(from));
      found.emplace_back(at, known->second);
    }
    return known->second;
  };
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [at, node] = found[i];
    if (reader.complete(at)) builder.skip(node, end);
    for (int digit = 0; digit < 10; ++digit) {
      Digits next = at;
      const auto byte = static_cast<uint8_t>('0' + digit);
      if (reader.digit(next, digit)) builder.bytes(node, byte, byte, node_of(next));
    }
    if (Digits next = at; reader.point(next)) builder.bytes(node, '.', '.', node_of(next));
  }
}

// Digits in which only the end of the number matters.
NodeId up_to_digits(AutomatonBuilder& builder, NodeId from, uint32_t most, NodeId end) {
  for (uint32_t i = 0; i < most; ++i) {
    const NodeId next = builder.add_node(builder.owner(from));
    builder.bytes(from, '0', '9', next);
    builder.skip(next, end);
    from = next;
  }
  return from;
}

// Any number. The exponent's size keeps it within what a double holds.
void add_any_number(AutomatonBuilder& builder, NodeId from, NodeId end) {
  const RuleId rule = builder.owner(from);
  const NodeId first = builder.add_node(rule), whole = builder.add_node(rule), digit = builder.add_node(rule);
  builder.bytes(from, '-', '-', first);
  builder.skip(from, first);
  builder.bytes(first, '0', '0', whole);
  builder.bytes(first, '1', '9', digit);
  builder.skip(digit, whole);
  up_to_digits(builder, digit, kWholeDigits - 1, whole);
  const NodeId fraction = builder.add_node(rule), point = builder.literal(whole, ".");
  builder.skip(whole, fraction);
  up_to_digits(builder, point, kFractionDigits, fraction);
  builder.skip(fraction, end);
  const NodeId exponent = builder.add_node(rule), signless = builder.add_node(rule);
  builder.bytes(fraction, 'e', 'e', exponent);
  builder.bytes(fraction, 'E', 'E', exponent);
  builder.bytes(exponent, '+', '+', signless);
  builder.bytes(exponent, '-', '-', signless);
  builder.skip(exponent, signless);
  up_to_digits(builder, signless, 2, end);
  const NodeId hundreds = builder.add_node(rule);
  builder.bytes(signless, '1', '1', hundreds);
  const NodeId tens = builder.add_node(rule);
  builder.bytes(hundreds, '0', '9', tens);
  builder.bytes(tens, '0', '9', end);
}

std::optional<NumberRange::Bound> negated(std::optional<NumberRange::Bound> bound) {
  if (bound) bound->value.negative = !bound->value.negative && !bound->value.is_zero();
  return bound;
}

}  // namespace

Decimal decimal_of(const base::Json& value) {
  return parse_decimal(value.dump());
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int order = compare_magnitudes(a, b);
  return a.negative ? -order : order;
}

std::string NumberRange::key() const {
  std::string key = fmt::format("{} {} {}", whole, step, step_digits);
  for (const auto& bound : {low, high}) {
    key += bound ? fmt::format(" {}{}.{}{}", bound->value.negative ? '-' : '+', bound->value.whole,
                               bound->value.fraction, bound->exclusive ? '!' : ' ')
                 : " none";
  }
  return key;
}

void NumberRange::at_least(Bound bound) {
  const int order = low ? compare(bound.value, low->value) : 1;
  if (order > 0 || (order == 0 && bound.exclusive)) low = std::move(bound);
}

void NumberRange::at_most(Bound bound) {
  const int order = high ? compare(bound.value, high->value) : -1;
  if (order < 0 || (order == 0 && bound.exclusive)) high = std::move(bound);
}

void NumberRange::multiple_of(const Decimal& factor, const std::string& source) {
  const std::string digits = factor.whole + factor.fraction;
  uint64_t own = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), own);
  auto own_digits = static_cast<uint32_t>(factor.fraction.size());
  if (factor.negative || own == 0 || parsed.ec != std::errc() || own > kMaxStep || own_digits > kMaxStepDigits) {
    base::bad_input(source, "must be above 0, of up to 9 digits and {} places", kMaxStepDigits);
  }
  if (step == 0) {
    step = own;
    step_digits = own_digits;
    return;
  }
  for (; step_digits < own_digits && step <= kMaxStep; ++step_digits) step *= 10;
  for (; own_digits < step_digits && own <= kMaxStep; ++own_digits) own *= 10;
  if (step <= kMaxStep && own <= kMaxStep && own_digits == step_digits) {
    step = step / std::gcd(step, own) * own;
    if (step <= kMaxStep) return;
  }
  base::bad_input(source, "has no common multiple up to {} with another one", kMaxStep);
}

bool NumberRange::holds(const Decimal& value) const {
  if (whole && !value.fraction.empty()) return false;
  if (low) {
    const int order = compare(value, low->value);
    if (order < 0 || (order == 0 && low->exclusive)) return false;
  }
  if (high) {
    const int order = compare(value, high->value);
    if (order > 0 || (order == 0 && high->exclusive)) return false;
  }
  if (step == 0) return true;
  if (value.fraction.size() > step_digits) return false;
  uint64_t rest = 0;
  for (const char c : value.whole + value.fraction) rest = (rest * 10 + static_cast<uint64_t>(c - '0')) % step;
  for (size_t i = value.fraction.size(); i < step_digits; ++i) rest = rest * 10 % step;
  return rest == 0;
}

RuleId number_rule(AutomatonBuilder& builder, NumberRange range, const std::string& source) {
  const RuleId rule = builder.add_rule(range.whole ? "a whole number" : "a number", 0);
  const NodeId start = builder.start(rule), end = builder.add_node(rule);
  builder.ends(end);
  if (!range.whole && !range.low && !range.high && range.step == 0) {
    add_any_number(builder, start, end);
    return rule;
  }
  if (range.whole) {
    range.at_least({parse_decimal("-9223372036854775808"), false});
    range.at_most({parse_decimal("9223372036854775807"), false});
  }
  const Decimal zero;
  if (!range.high || compare(range.high->value, zero) >= 0) {
    const bool bounded = range.low && compare(range.low->value, zero) >= 0;
    add_magnitudes(builder, MagnitudeReader(range, bounded ? range.low : std::nullopt, range.high, true), start, end,
                   source);
  }
  if (!range.low || range.low->value.negative) {
    const bool bounded = range.high && range.high->value.negative;
    const MagnitudeReader reader(range, bounded ? negated(range.high) : std::nullopt, negated(range.low), false);
    add_magnitudes(builder, reader, builder.literal(start, "-"), end, source);
  }
  return rule;
}

}  // namespace tandem::grammar
