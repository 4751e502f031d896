#include "base/error.h"
#include "ops/ops.h"

namespace tandem::ops {

void ExpertTable::place(const numeric::ExpertFormats& formats) {
  const std::optional<numeric::ExpertRecord> found = numeric::expert_record(formats, inner, hidden);
  if (!found) {
    base::bad_input("experts", "of {}, {} and {} can't have matrices [{}, {}] and [{}, {}]",
                    expert_format_name(formats[0]), expert_format_name(formats[1]), expert_format_name(formats[2]),
                    inner, hidden, hidden, inner);
  }
  record = *found;
}

}  // namespace tandem::ops
