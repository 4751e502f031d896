#include "ops/host/host_experts.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace tandem::ops::host {

namespace {

constexpr int64_t kBatch = 8;  // columns that one product takes here
// Accumulators of one piece of down's rows stay in a second-level cache.
constexpr int64_t kSumBytes = 256 << 10;

enum Projection : uint8_t { kGate, kUp, kDown };

// One matrix of one expert, as its record holds it.
struct Matrix {
  const std::byte* data;
  const std::byte* scales;  // FP8 only: the BF16 grid
  int64_t rows;
  int64_t inputs;
};

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Matrix matrix_of(const ExpertTable& table, int64_t expert, Projection which) {
  const std::byte* record = table.records + expert * table.record_bytes;
  const int64_t elements = table.inner * table.hidden;
  Matrix matrix{nullptr, nullptr, which == kDown ? table.hidden : table.inner,
                which == kDown ? table.inner : table.hidden};
  switch (table.format) {
    case ExpertFormat::kBF16:
      matrix.data = record + which * elements * 2;
      break;
    case ExpertFormat::kNvfp4:
      matrix.data = record + which * elements / 16 * 9;
      break;
    case ExpertFormat::kFp8Block: {
      const int64_t grid = ceil_div(table.inner, 128) * ceil_div(table.hidden, 128);
      matrix.data = record + which * elements;
      matrix.scales = record + 3 * elements + which * grid * 2;
      break;
    }
  }
  return matrix;
}

float weight_scale(const ExpertTable& table, int64_t expert, Projection which) {
  return table.scalars[expert * 6 + which];
}
float input_scale(const ExpertTable& table, int64_t expert, Projection which) {
  return table.scalars[expert * 6 + 3 + which];
}
// Then up takes the columns that were quantised for gate.
bool shares_inputs(const ExpertTable& table, int64_t expert) {
  return std::bit_cast<uint32_t>(input_scale(table, expert, kGate)) ==
         std::bit_cast<uint32_t>(input_scale(table, expert, kUp));
}

}  // namespace

struct HostExperts::Rows {
  Projection which;
  int64_t begin;
  int64_t count;
};

// Slots sorted by expert, in token order within one, so that each record is read once for all its columns.
void HostExperts::make_groups(const Ops::Experts& args) {
  const int64_t slots = args.tokens * args.top_k;
  const int64_t experts = args.table.experts;
  int32_t* counts = counts_.get(experts + 1);
  int32_t* order = order_.get(slots);
  Group* groups = groups_memory_.get(std::min(slots, experts));
  std::fill_n(counts, experts + 1, 0);
  for (int64_t i = 0; i < slots; ++i) ++counts[args.ids[i] + 1];
  groups_ = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (counts[e + 1] > 0) groups[groups_++] = {e, counts[e], counts[e + 1]};
    counts[e + 1] += counts[e];
  }
  for (int64_t i = 0; i < slots; ++i) order[counts[args.ids[i]]++] = static_cast<int32_t>(i);
}

void HostExperts::take_scratch(const Ops::Experts& args) {
  const int64_t slots = args.tokens * args.top_k;
  const int64_t hidden = args.table.hidden;
  const int64_t inner = args.table.inner;
  std::fill_n(faulty_.get(slots), slots, uint8_t{0});
  if (args.quantise_activations) {
    gate_blocks_ = blocks_.get(slots * (2 * hidden + inner) / 16);
    up_blocks_ = gate_blocks_ + slots * hidden / 16;
    down_blocks_ = up_blocks_ + slots * hidden / 16;
    return;
  }
  down_floats_ = floats_.get(args.tokens * hidden + slots * inner) + args.tokens * hidden;
}

void HostExperts::mark_faulty(int64_t slot) {
  std::atomic_ref(faulty_.data()[slot]).store(1, std::memory_order_relaxed);  // several workers may find the same
}

void HostExperts::quantise_inputs(const Ops::Experts& args) {
  const ExpertTable& table = args.table;
  const int64_t blocks = table.hidden / 16;
  pool_.run(args.tokens * args.top_k, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      const int64_t source = order_.data()[slot];
      const int64_t expert = args.ids[source];
      const float* x = args.x + source / args.top_k * table.hidden;
      bool finite =
          kernels_.quantise_nvfp4(x, table.hidden, input_scale(table, expert, kGate), gate_blocks_ + slot * blocks);
      if (!shares_inputs(table, expert)) {
        finite = kernels_.quantise_nvfp4(x, table.hidden, input_scale(table, expert, kUp), up_blocks_ + slot * blocks);
      }
      if (!finite) mark_faulty(slot);
    }
  });
}

void HostExperts::round_inputs(const Ops::Experts& args) {
  const int64_t hidden = args.table.hidden;
  x_ = floats_.data();
  pool_.run(args.tokens, 1, [&](int64_t begin, int64_t end) {
    kernels_.round_to_bf16(args.x + begin * hidden, (end - begin) * hidden, floats_.data() + begin * hidden);
  });
}

void HostExperts::product(const Ops::Experts& args, const Rows& rows, const Group& group, int64_t begin, int64_t count,
                          float* out) {
  const ExpertTable& table = args.table;
  const Matrix m = matrix_of(table, group.expert, rows.which);
  const int64_t first = group.first + begin;
  if (args.quantise_activations) {
    const Nvfp4Block* columns[kBatch];
    const bool up = rows.which == kUp && !shares_inputs(table, group.expert);
    const Nvfp4Block* all = rows.which == kDown ? down_blocks_ : up ? up_blocks_ : gate_blocks_;
    for (int64_t c = 0; c < count; ++c) columns[c] = all + (first + c) * m.inputs / 16;
    kernels_.nvfp4_w4a4(m.data + rows.begin * m.inputs / 16 * 9, m.inputs, columns, count,
                        weight_scale(table, group.expert, rows.which) * input_scale(table, group.expert, rows.which),
                        out);
    return;
  }
  const float* columns[kBatch];
  for (int64_t c = 0; c < count; ++c) {
    columns[c] = rows.which == kDown ? down_floats_ + (first + c) * m.inputs
                                     : x_ + order_.data()[first + c] / args.top_k * m.inputs;
  }
  if (table.format == ExpertFormat::kNvfp4) {
    kernels_.nvfp4_w4a16(m.data + rows.begin * m.inputs / 16 * 9, m.inputs, columns, count,
                         weight_scale(table, group.expert, rows.which), out);
    return;
  }
  thread_local Scratch<float> decoded;
  for (int64_t r = rows.begin; r < rows.begin + rows.count; ++r) {
    DenseMatrix matrix{m.data + r * m.inputs * 2, true, m.inputs};
    if (table.format == ExpertFormat::kFp8Block) {
      const auto* grid = reinterpret_cast<const uint16_t*>(m.scales) + r / 128 * ceil_div(m.inputs, 128);
      float* row = decoded.get(m.inputs);
      kernels_.decode_fp8_row(reinterpret_cast<const uint8_t*>(m.data) + r * m.inputs, grid, m.inputs, row);
      matrix = {row, false, m.inputs};
    }
    for (int64_t c = 0; c < count; ++c) {
      kernels_.linear(columns[c], m.inputs, 1, matrix, 0, 1, out + c * kExpertTileRows + r - rows.begin, nullptr, 1);
    }
  }
}

// One tile of gate, the same of up, and their SwiGLU, which is one block of down's inputs.
void HostExperts::gate_and_up(const Ops::Experts& args, bool round) {
  const int64_t inner = args.table.inner;
  const int64_t tiles = ceil_div(inner, kExpertTileRows);
  pool_.run(groups_ * tiles, 1, [&](int64_t begin, int64_t end) {
    alignas(64) float gate[kBatch * kExpertTileRows];
    alignas(64) float up[kBatch * kExpertTileRows];
    for (int64_t i = begin; i < end; ++i) {
      const Group& group = groups_memory_.data()[i / tiles];
      const int64_t row = i % tiles * kExpertTileRows;
      const int64_t rows = std::min(kExpertTileRows, inner - row);
      for (int64_t first = 0; first < group.count; first += kBatch) {
        const int64_t count = std::min(kBatch, group.count - first);
        product(args, {kGate, row, rows}, group, first, count, gate);
        product(args, {kUp, row, rows}, group, first, count, up);
        for (int64_t c = 0; c < count; ++c) {
          float* h = gate + c * kExpertTileRows;
          const int64_t slot = group.first + first + c;
          kernels_.silu_multiply(h, up + c * kExpertTileRows, rows, h);
          if (args.quantise_activations) {
            if (!kernels_.quantise_nvfp4(h, kExpertTileRows, input_scale(args.table, group.expert, kDown),
                                         down_blocks_ + (slot * inner + row) / 16)) {
              mark_faulty(slot);
            }
            continue;
          }
          float* to = down_floats_ + slot * inner + row;
          round ? kernels_.round_to_bf16(h, rows, to) : static_cast<void>(std::copy_n(h, rows, to));
        }
      }
    }
  });
}

// Tiles of down for all experts, and their weighted sum: fixed point, so that its order does not matter; even and odd
// experts apart. A worker has all experts of its rows, so that no sum crosses workers.
void HostExperts::down_and_sum(const Ops::Experts& args) {
  const int64_t hidden = args.table.hidden;
  const int64_t token_sums = 2 * kExpertTileRows;
  const int64_t together = std::max<int64_t>(1, kSumBytes / (args.tokens * token_sums * 8));
  pool_.run(ceil_div(hidden, kExpertTileRows), 1, [&](int64_t tile_begin, int64_t tile_end) {
    thread_local Scratch<int64_t> memory;
    alignas(64) float y[kBatch * kExpertTileRows];
    for (int64_t from = tile_begin; from < tile_end; from += together) {
      const int64_t to = std::min(tile_end, from + together);
      int64_t* sums = memory.get((to - from) * args.tokens * token_sums);
      std::fill_n(sums, (to - from) * args.tokens * token_sums, 0);
      for (int64_t g = 0; g < groups_; ++g) {
        const Group& group = groups_memory_.data()[g];
        int64_t* half = sums + group.expert % 2 * kExpertTileRows;
        for (int64_t tile = from; tile < to; ++tile) {
          const int64_t rows = std::min(kExpertTileRows, hidden - tile * kExpertTileRows);
          for (int64_t first = 0; first < group.count; first += kBatch) {
            const int64_t count = std::min(kBatch, group.count - first);
            product(args, {kDown, tile * kExpertTileRows, rows}, group, first, count, y);
            for (int64_t c = 0; c < count; ++c) {
              const int64_t source = order_.data()[group.first + first + c];
              const int64_t token = source / args.top_k;
              std::fill_n(y + c * kExpertTileRows + rows, kExpertTileRows - rows, 0.0F);
              if (!kernels_.add_weighted(y + c * kExpertTileRows, args.weights[source],
                                         half + ((tile - from) * args.tokens + token) * token_sums)) {
                mark_faulty(group.first + first + c);
              }
            }
          }
        }
      }
      for (int64_t tile = from; tile < to; ++tile) {
        const int64_t rows = std::min(kExpertTileRows, hidden - tile * kExpertTileRows);
        for (int64_t t = 0; t < args.tokens; ++t) {
          const int64_t* sum = sums + ((tile - from) * args.tokens + t) * token_sums;
          for (int64_t r = 0; r < rows; ++r) {
            args.lower[t * hidden + tile * kExpertTileRows + r] = static_cast<float>(sum[r]) * 0x1p-32F;
            args.upper[t * hidden + tile * kExpertTileRows + r] =
                static_cast<float>(sum[kExpertTileRows + r]) * 0x1p-32F;
          }
        }
      }
    }
  });
}

Fault HostExperts::run(const Ops::Experts& args, bool round) {
  if (args.quantise_activations && args.table.format != ExpertFormat::kNvfp4) {
    base::internal_error("experts", "4-bit activations need NVFP4 records");
  }
  if (args.top_k > kMostExpertsPerToken) {
    base::internal_error("experts", "{} experts a token; the sum holds {}", args.top_k, kMostExpertsPerToken);
  }
  make_groups(args);
  take_scratch(args);
  x_ = args.x;
  if (args.quantise_activations) {
    quantise_inputs(args);
  } else if (round) {
    round_inputs(args);
  }
  gate_and_up(args, round);
  down_and_sum(args);
  Fault first = -1;
  for (int64_t slot = 0; slot < args.tokens * args.top_k; ++slot) {
    if (faulty_.data()[slot] == 0) continue;
    const Fault token = order_.data()[slot] / args.top_k;
    first = first < 0 ? token : std::min(first, token);
  }
  return first;
}

}  // namespace tandem::ops::host
