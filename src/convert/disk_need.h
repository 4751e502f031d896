// What a conversion asks of the disk.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "convert/object_plan.h"

namespace tandem::convert {

// For each shard, the index of the last plan that reads it; plans.size() where none does.
std::vector<size_t> last_uses(const Plans& plans, size_t shards);

// The most bytes that are taken beyond those taken now, while the plans from `done` on are written and each shard is
// freed after its last use. Without consuming, every byte of `freed` is 0.
//   freed  bytes that deleting the shard gives back to the disk that is written to
uint64_t peak_bytes(const Plans& plans, size_t done, const std::vector<size_t>& last_use,
                    const std::vector<uint64_t>& freed);

}  // namespace tandem::convert
