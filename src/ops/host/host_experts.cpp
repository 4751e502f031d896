#include "ops/host/host_experts.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <immintrin.h>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "numeric/activation.h"
#include "numeric/block_units.h"
#include "numeric/expert_limits.h"
#include "numeric/fp8_block.h"
#include "numeric/fp8_units.h"

namespace tandem::ops::host {

namespace {

using base::ceil_div;

constexpr int64_t kInputPart = 512;       // inputs of a column that are quantised at once: whole blocks of every format
constexpr int64_t kBatch = 8;             // columns that one product takes here
constexpr int64_t kDownRows = 32;         // rows of gate and up that make whole blocks of down's inputs
constexpr int64_t kSumBytes = 256 << 10;  // accumulators of one piece of down's rows: a part of a second-level cache
constexpr int64_t kTileSums = 2 * kExpertTileRows;  // the even and the odd experts' sums of a token and a tile
// Steps of up to so many tokens are bounded by reading weights, and threads take single tiles of down. With more tokens
// neighbouring tiles find their columns in a thread's cache.
constexpr int64_t kTokensOfSingleTiles = 16;
constexpr int64_t kRangesPerThread = 4;  // of down's tiles otherwise

// What one worker counts down and others wait for.
bool is_done(int32_t& left) {
  return std::atomic_ref(left).load(std::memory_order_acquire) <= 0;
}
void wait_for(int32_t& left) {
  while (!is_done(left)) _mm_pause();
}
class Countdown {
 public:
  Countdown(int32_t& left, int64_t by) : left_(left), by_(static_cast<int32_t>(by)) {}
  ~Countdown() { std::atomic_ref(left_).fetch_sub(by_, std::memory_order_acq_rel); }  // also where the work throws
  Countdown(const Countdown&) = delete;
  Countdown& operator=(const Countdown&) = delete;

 private:
  int32_t& left_;
  int32_t by_;
};

int64_t inputs_of(const ExpertTable& table, int which) {
  return which == 2 ? table.inner : table.hidden;
}

// The formats whose kernels take the inputs in the same order.
bool same_order(ExpertFormat a, ExpertFormat b) {
  const auto is_iq3 = [](ExpertFormat f) { return f == ExpertFormat::kIq3s || f == ExpertFormat::kIq3xxs; };
  const auto is_iq4 = [](ExpertFormat f) { return f == ExpertFormat::kIq4nl || f == ExpertFormat::kIq4xs; };
  return a == b || (is_iq3(a) && is_iq3(b)) || (is_iq4(a) && is_iq4(b));
}

}  // namespace

// Slots sorted by expert, in token order within one, so that each record is read once for all its columns.
void HostExperts::make_groups(const Ops::Experts& args) {
  const int64_t slots = args.tokens * args.top_k;
  int32_t* counts = counts_.get(args.table.experts);  // zeros between calls: most experts have no slot
  int32_t* order = order_.get(slots);
  Group* groups = groups_memory_.get(std::min(slots, args.table.experts));
  groups_ = 0;
  for (int64_t i = 0; i < slots; ++i) {
    if (counts[args.ids[i]]++ == 0) groups[groups_++] = {args.ids[i], 0, 0};
  }
  std::sort(groups, groups + groups_, [](const Group& a, const Group& b) { return a.expert < b.expert; });
  int64_t first = 0;
  for (Group* group = groups; group != groups + groups_; ++group) {
    group->first = first;
    group->count = std::exchange(counts[group->expert], static_cast<int32_t>(first));
    first += group->count;
  }
  for (int64_t i = 0; i < slots; ++i) order[counts[args.ids[i]]++] = static_cast<int32_t>(i);
  for (const Group* group = groups; group != groups + groups_; ++group) counts[group->expert] = 0;
  std::fill_n(faulty_.get(args.tokens), args.tokens, uint8_t{0});
}

void HostExperts::place_columns(const Ops::Experts& args) {
  int64_t bytes = 0;
  int64_t places[3];
  for (const int which : {kGate, kUp, kDown}) {
    Columns& columns = columns_[which];
    const int64_t inputs = inputs_of(args.table, which);
    columns = {};
    columns.format = args.table.record.matrices[which].format;
    columns.stride = inputs * 4;
    if (args.quantise_activations && columns.format == ExpertFormat::kNvfp4) {
      columns.kind = ColumnKind::kNvfp4;
      columns.stride = inputs / 16 * static_cast<int64_t>(sizeof(Nvfp4Block));
    } else if (args.quantise_activations && takes_int8_activations(columns.format)) {
      columns.kind = ColumnKind::kInt8;
      columns.stride = inputs / 32 * static_cast<int64_t>(sizeof(Int8Block));
    }
    columns.dynamic = columns.kind == ColumnKind::kNvfp4 && args.table.scalars_each == 3;
    columns.by_token = which != kDown && (columns.kind != ColumnKind::kNvfp4 || columns.dynamic);
    places[which] = bytes;
    bytes += columns.stride * args.tokens * (columns.by_token ? 1 : args.top_k);
  }
  std::byte* memory = columns_memory_.get(bytes);
  const int64_t slots = args.tokens * args.top_k;
  for (const int which : {kGate, kUp, kDown}) {
    columns_[which].data = memory + places[which];
    columns_[which].scales = scales_memory_.get(3 * slots) + which * slots;
    if (columns_[which].kind != ColumnKind::kNvfp4 || columns_[which].dynamic) continue;
    for (int64_t slot = 0; slot < slots; ++slot) {
      const int64_t expert = args.ids[order_.data()[slot]];
      columns_[which].scales[slot] = args.table.scalars[expert * args.table.scalars_each + 3 + which];
    }
  }
  if (columns_[kDown].dynamic) inner_memory_.get(slots * args.table.inner);
}

// Whether up takes the column that was made for gate.
bool HostExperts::shares_inputs(int64_t column) const {
  const Columns& gate = columns_[kGate];
  const Columns& up = columns_[kUp];
  if (gate.kind != up.kind) return false;
  if (gate.kind == ColumnKind::kInt8) return same_order(gate.format, up.format);
  return gate.by_token || std::bit_cast<uint32_t>(gate.scales[column]) == std::bit_cast<uint32_t>(up.scales[column]);
}

void HostExperts::mark_faulty(int64_t token) {
  std::atomic_ref(faulty_.data()[token]).store(1, std::memory_order_relaxed);  // several workers may find the same
}

bool HostExperts::make_column(const Columns& columns, const float* x, int64_t count, float scale, bool round,
                              std::byte* out) const {
  switch (columns.kind) {
    case ColumnKind::kNvfp4:
      return kernels_.quantise_nvfp4(x, count, scale, reinterpret_cast<Nvfp4Block*>(out));
    case ColumnKind::kInt8:
      return kernels_.quantise_int8(columns.format, x, count, reinterpret_cast<Int8Block*>(out));
    case ColumnKind::kFloats:
      break;
  }
  auto* to = reinterpret_cast<float*>(out);
  if (round) {
    kernels_.round_to_bf16(x, count, to);
  } else {
    std::copy_n(x, count, to);
  }
  return true;  // the sum finds what is not finite
}

// How the columns of gate and up are cut into pieces: a part of a column's inputs each.
void HostExperts::cut_inputs(const Ops::Experts& args) {
  const int64_t slots = args.tokens * args.top_k;
  input_parts_ = args.table.hidden % kInputPart == 0 ? args.table.hidden / kInputPart : 1;
  gate_columns_ = columns_[kGate].by_token ? args.tokens : slots;
  up_columns_ = columns_[kUp].by_token ? (shares_inputs(0) ? 0 : args.tokens) : slots;
}

// Pieces [begin, end) of the columns of gate and up.
void HostExperts::make_inputs(const Ops::Experts& args, bool round, int64_t begin, int64_t end) {
  const Countdown done(inputs_left_, end - begin);
  const int64_t hidden = args.table.hidden;
  const int64_t part = hidden / input_parts_;
  for (int64_t i = begin; i < end; ++i) {
    const Projection which = i / input_parts_ < gate_columns_ ? kGate : kUp;
    const Columns& columns = columns_[which];
    const int64_t column = i / input_parts_ - (which == kGate ? 0 : gate_columns_);
    const int64_t token = columns.by_token ? column : token_of(args, column);
    const float* x = args.x + token * hidden;
    const int64_t at = i % input_parts_;
    float scale = 1.0F;
    if (columns.dynamic) {
      scale = numeric::dynamic_input_scale({x, static_cast<size_t>(hidden)});
      if (at == 0) columns.scales[column] = scale;
    } else if (!columns.by_token) {
      if (which == kUp && shares_inputs(column)) continue;
      scale = columns.scales[column];
    }
    if (!make_column(columns, x + at * part, part, scale, round,
                     columns.data + column * columns.stride + at * (columns.stride / input_parts_))) {
      mark_faulty(token);
    }
  }
}

// Row by row, decoded where the format asks for it.
void HostExperts::float_rows(ExpertFormat format, const Tile& tile, int64_t rows, int64_t inputs,
                             const float* const* columns, int64_t count, float* out) {
  thread_local Scratch<float> decoded;
  const std::span<float> row(decoded.get(inputs), static_cast<size_t>(inputs));
  for (int64_t r = 0; r < rows; ++r) {
    Weight weights{.data = row.data(), .format = WeightFormat::kF32, .rows = 1, .inputs = inputs};
    if (format == ExpertFormat::kBF16) {
      weights.data = tile.data + r * inputs * 2;
      weights.format = WeightFormat::kBF16;
    } else if (format == ExpertFormat::kFp8Block) {
      numeric::decode_fp8_row(tile.data, r, tile.scales, row);
    } else {
      numeric::decode_block_row(block_unit_of(format), tile.data, r, row);
    }
    for (int64_t c = 0; c < count; ++c) {
      kernels_.linear(columns[c], inputs, 1, weights, 0, 1, out + c * kExpertTileRows + r, nullptr, 1, nullptr);
    }
  }
}

// Where the tile that begins with `row` lies. In every format 16 rows are contiguous.
const std::byte* HostExperts::tile_of(const ExpertTable& table, int64_t expert, Projection which, int64_t row) {
  const numeric::ExpertRecord::Matrix& matrix = table.record.matrices[which];
  const int64_t row_bytes = matrix.bytes / (which == kDown ? table.hidden : table.inner);
  return table.records + expert * table.record.bytes + matrix.offset + row * row_bytes;
}

// The multipliers of the same tile in FP8, null in other formats.
const uint16_t* HostExperts::scales_of(const ExpertTable& table, int64_t expert, Projection which, int64_t row) {
  const numeric::ExpertRecord::Matrix& matrix = table.record.matrices[which];
  if (matrix.format != ExpertFormat::kFp8Block) return nullptr;
  const std::byte* grid = table.records + expert * table.record.bytes + matrix.scales_offset;
  return reinterpret_cast<const uint16_t*>(grid) +
         row / numeric::kFp8BlockSide * numeric::fp8_blocks(inputs_of(table, which));
}

void HostExperts::product(const Ops::Experts& args, const Rows& rows, const Group& group, int64_t begin, int64_t count,
                          float* out) {
  const ExpertTable& table = args.table;
  const ExpertFormat format = table.record.matrices[rows.which].format;
  const int64_t inputs = inputs_of(table, rows.which);
  const Columns& columns = columns_[rows.which == kUp && shares_inputs(group.first) ? kGate : rows.which];
  int64_t index[kBatch];
  const std::byte* column[kBatch];
  for (int64_t c = 0; c < count; ++c) {
    const int64_t slot = group.first + begin + c;
    index[c] = columns.by_token ? token_of(args, slot) : slot;
    column[c] = columns.data + index[c] * columns.stride;
  }
  const Tile tile{tile_of(table, group.expert, rows.which, rows.begin),
                  tile_of(table, rows.next_expert, rows.next_which, rows.next_begin),
                  scales_of(table, group.expert, rows.which, rows.begin)};
  if (columns.kind == ColumnKind::kInt8) {
    kernels_.int8_product(format, tile, inputs, reinterpret_cast<const Int8Block* const*>(column), count, out);
    return;
  }
  if (format != ExpertFormat::kNvfp4) {
    float_rows(format, tile, rows.count, inputs, reinterpret_cast<const float* const*>(column), count, out);
    return;
  }
  const float weight_scale = table.scalars[group.expert * table.scalars_each + rows.which];
  if (columns.kind == ColumnKind::kNvfp4) {
    float scales[kBatch];
    for (int64_t c = 0; c < count; ++c) scales[c] = weight_scale * columns.scales[index[c]];
    kernels_.nvfp4_w4a4(tile, inputs, reinterpret_cast<const Nvfp4Block* const*>(column), count, scales, out);
  } else {
    kernels_.nvfp4_w4a16(tile.data, inputs, reinterpret_cast<const float* const*>(column), count, weight_scale, out);
  }
}

int64_t HostExperts::pieces_of_group(const ExpertTable& table) {
  return ceil_div(table.inner, kDownRows);
}

// Pieces [begin, end): kDownRows rows of an expert each, one expert after the other.
void HostExperts::gate_and_up(const Ops::Experts& args, bool round, int64_t begin, int64_t end) {
  const int64_t pieces = pieces_of_group(args.table);
  for (int64_t i = begin; i < end; ++i) {
    const Countdown done(groups_left_.data()[i / pieces], 1);
    wait_for(inputs_left_);
    const int64_t row = i % pieces * kDownRows;
    gate_and_up_rows(args, round, i, row, std::min(args.table.inner, row + kDownRows));
  }
}

// Two tiles of gate, the same of up, and their SwiGLU, which is a whole block of down's inputs in every format.
void HostExperts::gate_and_up_rows(const Ops::Experts& args, bool round, int64_t piece, int64_t begin, int64_t end) {
  alignas(64) float products[2][2][kBatch * kExpertTileRows];  // gate and up, two tiles each
  alignas(64) float h[kDownRows];
  const int64_t pieces = pieces_of_group(args.table);
  const Group& group = groups_memory_.data()[piece / pieces];
  const Group& next = groups_memory_.data()[std::min(piece + 1, groups_ * pieces - 1) / pieces];
  const Columns& down = columns_[kDown];
  const int64_t inner = args.table.inner;
  const int64_t tiles = ceil_div(end - begin, kExpertTileRows);
  for (int64_t first = 0; first < group.count; first += kBatch) {
    const int64_t count = std::min(kBatch, group.count - first);
    for (const Projection which : {kGate, kUp}) {
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t row = begin + t * kExpertTileRows;
        Rows rows{which, row, std::min(kExpertTileRows, end - row), group.expert, which, row + kExpertTileRows};
        if (t + 1 == tiles && which == kGate) {
          rows.next_which = kUp;
          rows.next_begin = begin;
        } else if (t + 1 == tiles) {
          rows.next_expert = next.expert;
          rows.next_which = kGate;
          rows.next_begin = (piece + 1) % pieces * kDownRows;
        }
        product(args, rows, group, first, count, products[which][t]);
      }
    }
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t t = 0; t < tiles; ++t) {
        kernels_.silu_multiply(products[kGate][t] + c * kExpertTileRows, products[kUp][t] + c * kExpertTileRows,
                               std::min(kExpertTileRows, end - begin - t * kExpertTileRows), h + t * kExpertTileRows);
      }
      const int64_t slot = group.first + first + c;
      if (down.dynamic) {
        std::copy_n(h, end - begin, inner_memory_.data() + slot * inner + begin);
        continue;
      }
      if (!make_column(down, h, end - begin, down.scales[slot], round,
                       down.data + slot * down.stride + begin * down.stride / inner)) {
        mark_faulty(token_of(args, slot));
      }
    }
  }
}

// The columns of down that need the whole of one to be scaled, of slots [begin, end).
void HostExperts::make_dynamic_down(const Ops::Experts& args, int64_t begin, int64_t end) {
  const Columns& down = columns_[kDown];
  const int64_t inner = args.table.inner;
  const Group* groups = groups_memory_.data();
  for (int64_t slot = begin; slot < end; ++slot) {
    const Group* behind = std::upper_bound(groups, groups + groups_, slot,
                                           [](int64_t at, const Group& group) { return at < group.first; });
    const int64_t group = behind - groups - 1;
    const Countdown done(groups_left_.data()[groups_ + group], 1);
    wait_for(groups_left_.data()[group]);
    const float* h = inner_memory_.data() + slot * inner;
    down.scales[slot] = numeric::dynamic_input_scale({h, static_cast<size_t>(inner)});
    if (!make_column(down, h, inner, down.scales[slot], false, down.data + slot * down.stride)) {
      mark_faulty(token_of(args, slot));
    }
  }
}

// Tiles [tile_begin, tile_end) of down for all experts, added to sums [tiles][tokens][even, odd][16]. Experts whose
// columns are still being made come last.
void HostExperts::sum_tiles(const Ops::Experts& args, int64_t tile_begin, int64_t tile_end, int64_t* sums) {
  thread_local Scratch<int64_t> memory;
  int64_t* postponed = memory.get(groups_);
  int64_t count = 0;
  int32_t* left = groups_left_.data() + (columns_[kDown].dynamic ? groups_ : 0);
  for (int64_t g = 0; g < groups_; ++g) {
    if (is_done(left[g])) {
      sum_group(args, g, tile_begin, tile_end, sums);
    } else {
      postponed[count++] = g;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    wait_for(left[postponed[i]]);
    sum_group(args, postponed[i], tile_begin, tile_end, sums);
  }
}

void HostExperts::sum_group(const Ops::Experts& args, int64_t g, int64_t tile_begin, int64_t tile_end, int64_t* sums) {
  alignas(64) float y[kBatch * kExpertTileRows];
  const Group& group = groups_memory_.data()[g];
  const int64_t next_expert = groups_memory_.data()[g + 1 < groups_ ? g + 1 : 0].expert;
  int64_t* half = sums + group.expert % 2 * kExpertTileRows;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t row = tile * kExpertTileRows;
    Rows rows{kDown,        row,   std::min(kExpertTileRows, args.table.hidden - row),
              group.expert, kDown, row + kExpertTileRows};
    if (tile + 1 == tile_end) {
      rows.next_expert = next_expert;
      // Behind the last expert the worker most likely goes on with the rows that follow.
      rows.next_begin = (g + 1 < groups_ ? tile_begin : tile_end) * kExpertTileRows;
    }
    for (int64_t first = 0; first < group.count; first += kBatch) {
      const int64_t count = std::min(kBatch, group.count - first);
      product(args, rows, group, first, count, y);
      for (int64_t c = 0; c < count; ++c) {
        const int64_t slot = group.first + first + c;
        float* column = y + c * kExpertTileRows;
        std::fill(column + rows.count, column + kExpertTileRows, 0.0F);
        int64_t* to = half + ((tile - tile_begin) * args.tokens + token_of(args, slot)) * kTileSums;
        if (!kernels_.add_weighted(column, args.weights[order_.data()[slot]], to)) mark_faulty(token_of(args, slot));
      }
    }
  }
}

// The weighted sum of the experts: fixed point, so that its order does not matter; even and odd experts apart. A worker
// has all experts of its tiles [tile_begin, tile_end), so that no sum crosses workers.
void HostExperts::down_and_sum(const Ops::Experts& args, int64_t tile_begin, int64_t tile_end) {
  const int64_t hidden = args.table.hidden;
  const int64_t together = std::max<int64_t>(1, kSumBytes / (args.tokens * kTileSums * 8));
  thread_local Scratch<int64_t> memory;
  for (int64_t from = tile_begin; from < tile_end; from += together) {
    const int64_t to = std::min(tile_end, from + together);
    const int64_t count = (to - from) * args.tokens;
    int64_t* sums = memory.get(count * kTileSums);
    std::fill_n(sums, count * kTileSums, 0);
    sum_tiles(args, from, to, sums);
    for (int64_t i = 0; i < count; ++i, sums += kTileSums) {
      const int64_t row = (from + i / args.tokens) * kExpertTileRows;
      const int64_t at = i % args.tokens * hidden + row;
      for (int64_t r = 0; r < std::min(kExpertTileRows, hidden - row); ++r) {
        args.lower[at + r] = static_cast<float>(sums[r]) * 0x1p-32F;
        args.upper[at + r] = static_cast<float>(sums[kExpertTileRows + r]) * 0x1p-32F;
      }
    }
  }
}

// The stages follow each other without a barrier: whoever needs what an earlier one makes waits for just that.
void HostExperts::run_stages(const Ops::Experts& args, bool round) {
  const int64_t threads = pool_.threads();
  const int64_t inputs = (gate_columns_ + up_columns_) * input_parts_;
  const int64_t pieces = pieces_of_group(args.table);
  const int64_t tiles = ceil_div(args.table.hidden, kExpertTileRows);
  const int64_t slots = columns_[kDown].dynamic ? args.tokens * args.top_k : 0;
  inputs_left_ = static_cast<int32_t>(inputs);
  int32_t* left = groups_left_.get(2 * groups_);  // pieces of gate and up, then slots that make_dynamic_down serves
  for (int64_t g = 0; g < groups_; ++g) {
    left[g] = static_cast<int32_t>(pieces);
    left[groups_ + g] = static_cast<int32_t>(groups_memory_.data()[g].count);
  }
  const int64_t tiles_of_range = args.tokens <= kTokensOfSingleTiles ? 1 : ceil_div(tiles, kRangesPerThread * threads);
  // A thread takes one range of the inputs, so that few meet where they count down.
  const base::WorkerPool::Stage stages[] = {
      {inputs, ceil_div(inputs, threads), [&](int64_t b, int64_t e) { make_inputs(args, round, b, e); }},
      {groups_ * pieces, 1, [&](int64_t b, int64_t e) { gate_and_up(args, round, b, e); }},
      {slots, 1, [&](int64_t b, int64_t e) { make_dynamic_down(args, b, e); }},
      {tiles, tiles_of_range, [&](int64_t b, int64_t e) { down_and_sum(args, b, e); }}};
  pool_.run_stages(stages);
}

void HostExperts::run(const Ops::Experts& args, bool round) {
  if (args.top_k > numeric::kMostExpertsPerToken) {
    base::internal_error("experts", "{} experts a token; the sum holds {}", args.top_k, numeric::kMostExpertsPerToken);
  }
  make_groups(args);
  place_columns(args);
  cut_inputs(args);
  run_stages(args, round);
  for (int64_t t = 0; t < args.tokens; ++t) {
    if (faulty_.data()[t] != 0 && args.faults[t] < 0) args.faults[t] = args.fault;
  }
}

}  // namespace tandem::ops::host
