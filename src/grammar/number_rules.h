// Numbers within bounds, as rules over their digits.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "grammar/automaton.h"

namespace tandem::grammar {

// A decimal number as it is written, exactly.
struct Decimal {
  bool negative = false;
  std::string whole;     // without leading zeros: empty for 0
  std::string fraction;  // without trailing zeros

  bool is_zero() const { return whole.empty() && fraction.empty(); }
};

// REQUIRES: value.is_number(); the shortest digits that give a double.
Decimal decimal_of(const base::Json& value);
// < 0, 0, > 0.
int compare(const Decimal& a, const Decimal& b);

struct NumberRange {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  std::optional<Bound> low, high;
  // A multiple of step / 10^step_digits; 0: any number.
  uint64_t step = 0;
  uint32_t step_digits = 0;
  bool whole = false;  // no fraction

  std::string key() const;  // equal where the ranges are

  void at_least(Bound bound);
  void at_most(Bound bound);
  // Throws base::Error{kBadInput} with `source` where the common multiple is too large.
  void multiple_of(const Decimal& factor, const std::string& source);
  bool holds(const Decimal& value) const;
};

// Numbers within the range, written without an exponent unless nothing bounds them: whole numbers within 64 bits,
// others with up to 18 digits before the point (more where the bounds need them) and 17 after it. Throws
// base::Error{kBadInput} with `source` where the range takes too many states.
RuleId number_rule(AutomatonBuilder& builder, NumberRange range, const std::string& source);

}  // namespace tandem::grammar
