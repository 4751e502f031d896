#include "convert/disk_need.h"

#include <algorithm>

#include "base/units.h"

namespace tandem::convert {

namespace {

// The directory, the journal and the file system's own tables.
constexpr uint64_t kFixed = uint64_t{1} << 20;
constexpr uint64_t kPerObject = 1024;

}  // namespace

std::vector<size_t> last_uses(const Plans& plans, size_t shards) {
  std::vector<size_t> last(shards, plans.size());
  for (size_t i = 0; i < plans.size(); ++i) {
    for (const checkpoint::Tensor* tensor : plans[i]->tensors()) last[tensor->shard] = i;
  }
  return last;
}

uint64_t peak_bytes(const Plans& plans, size_t done, const std::vector<size_t>& last_use,
                    const std::vector<uint64_t>& freed) {
  std::vector<uint64_t> freed_after(plans.size() + 1);
  int64_t taken = static_cast<int64_t>(kFixed + kPerObject * plans.size());
  for (size_t shard = 0; shard < last_use.size(); ++shard) {
    if (last_use[shard] < done) taken -= static_cast<int64_t>(freed[shard]);
    freed_after[last_use[shard]] += freed[shard];
  }
  int64_t peak = taken;
  for (size_t i = done; i < plans.size(); ++i) {
    taken += static_cast<int64_t>(base::round_up(plans[i]->object().bytes, artifact::kAlignment));
    peak = std::max(peak, taken);
    taken -= static_cast<int64_t>(freed_after[i]);
  }
  return static_cast<uint64_t>(std::max<int64_t>(peak, 0));
}

}  // namespace tandem::convert
