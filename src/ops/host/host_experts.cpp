// The router, the routed experts, and their sum in two halves.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "numeric/activation.h"
#include "ops/host/host_ops.h"

namespace tandem::ops::host {

namespace {

constexpr int64_t kRowTile = 16;
constexpr float kLargestTerm = 0x1p30F;  // |p * y| beyond it is a fault: the sum's fixed point would overflow

// The columns of one layer that one expert computes.
struct Group {
  int64_t expert;
  int64_t first;  // index of its first column in the sorted order
  int64_t count;
};

// One matrix of one expert, as its record holds it.
struct ExpertMatrix {
  const std::byte* data;
  const std::byte* scales;  // FP8 only
  int64_t rows;
  int64_t inputs;
};

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Matrix 0 gate, 1 up, 2 down of the record (docs/artifact.md).
ExpertMatrix matrix_of(const ExpertTable& table, int64_t expert, int which) {
  const std::byte* record = table.records + expert * table.record_bytes;
  const int64_t elements = table.inner * table.hidden;
  const bool down = which == 2;
  ExpertMatrix matrix{nullptr, nullptr, down ? table.hidden : table.inner, down ? table.inner : table.hidden};
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

}  // namespace

void HostOps::router(const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids, float* weights) {
  const int64_t experts = w.rows;
  float* logits = gates_.get(tokens * experts);
  linear(x, tokens, w, true, logits);
  pool_.run(tokens, 16, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> order(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      float* p = logits + t * experts;
      const float largest = *std::max_element(p, p + experts);
      float sum = 0;
      for (int64_t e = 0; e < experts; ++e) {
        p[e] = std::exp(p[e] - largest);
        sum += p[e];
      }
      for (int64_t e = 0; e < experts; ++e) p[e] /= sum;
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                        [&](int32_t a, int32_t b) { return p[a] > p[b] || (p[a] == p[b] && a < b); });
      float kept = 0;
      for (int64_t k = 0; k < top_k; ++k) kept += p[order[static_cast<size_t>(k)]];
      for (int64_t k = 0; k < top_k; ++k) {
        ids[t * top_k + k] = order[static_cast<size_t>(k)];
        weights[t * top_k + k] = p[order[static_cast<size_t>(k)]] / kept;
      }
    }
  });
}

Fault HostOps::experts(const Experts& args) {
  const ExpertTable& table = args.table;
  if (args.quantise_activations && table.format != ExpertFormat::kNvfp4) {
    base::internal_error("experts", "4-bit activations need NVFP4 records");
  }
  const int64_t slots = args.tokens * args.top_k;
  const int64_t inner = table.inner;
  const int64_t hidden = table.hidden;

  // Columns sorted by expert, in token order within one, so that each record is read once for all its columns.
  std::vector<int32_t> order(static_cast<size_t>(slots));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return args.ids[a] < args.ids[b]; });
  std::vector<Group> groups;
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t expert = args.ids[order[static_cast<size_t>(i)]];
    if (groups.empty() || groups.back().expert != expert) groups.push_back({expert, i, 0});
    ++groups.back().count;
  }

  const float* x = args.quantise_activations ? args.x : product_inputs(args.x, args.tokens * hidden, false);
  const int64_t widest = std::max(inner, hidden);
  float* gate = expert_floats_.get(slots * (2 * inner + hidden));
  float* up = gate + slots * inner;
  float* y = up + slots * inner;

  // Quantised columns: the gate's and the up's inputs, later the down's in the gate's place.
  const int64_t blocks = widest / numeric::kActivationBlock;
  int8_t* values = args.quantise_activations ? expert_values_.get(2 * slots * widest) : nullptr;
  int32_t* scales = args.quantise_activations ? expert_scales_.get(4 * slots * blocks) : nullptr;
  std::vector<uint8_t> faulty(static_cast<size_t>(slots), 0);
  const auto column = [&](int64_t slot, int set) {
    const int64_t at = set * slots + slot;
    return QuantisedColumn{values + at * widest, scales + 2 * at * blocks, scales + (2 * at + 1) * blocks};
  };
  const auto quantise = [&](const float* source, int64_t inputs, float input_scale, int64_t slot, int set) {
    const QuantisedColumn target = column(slot, set);
    bool finite = true;
    for (int64_t b = 0; b < inputs / 16; ++b) {
      int8_t block[16];
      target.scales[b] = numeric::quantise_activation_block(source + 16 * b, input_scale, block, finite);
      int32_t sum = 0;
      for (int i = 0; i < 16; ++i) {
        sum += block[i];
        // The units' nibbles come out as four even inputs, then four odd ones, of each eight.
        target.values[16 * b + i / 8 * 8 + i % 2 * 4 + i % 8 / 2] = block[i];
      }
      target.block_sums[b] = sum;
    }
    if (!finite) faulty[static_cast<size_t>(slot)] = 1;
  };

  // Rows [begin, end) of one matrix for all columns of one group.
  const auto product = [&](const Group& group, int which, int64_t begin, int64_t end, const float* inputs,
                           bool inputs_by_slot, float* out) {
    const ExpertMatrix m = matrix_of(table, group.expert, which);
    std::vector<const float*> in(static_cast<size_t>(group.count));
    std::vector<float*> to(static_cast<size_t>(group.count));
    for (int64_t c = 0; c < group.count; ++c) {
      const int64_t slot = group.first + c;
      const int64_t row = inputs_by_slot ? slot : order[static_cast<size_t>(slot)] / args.top_k;
      in[static_cast<size_t>(c)] = inputs + row * m.inputs;
      to[static_cast<size_t>(c)] = out + slot * m.rows;
    }
    if (table.format == ExpertFormat::kNvfp4) {
      const Nvfp4Matrix matrix{reinterpret_cast<const uint8_t*>(m.data), m.rows, m.inputs};
      const float weight_scale = table.scalars[group.expert * 6 + which];
      const float input_scale = table.scalars[group.expert * 6 + 3 + which];
      if (args.quantise_activations) {
        std::vector<QuantisedColumn> columns(static_cast<size_t>(group.count));
        for (int64_t c = 0; c < group.count; ++c) {
          columns[static_cast<size_t>(c)] = column(group.first + c, which == 1 ? 1 : 0);
        }
        kernels_.nvfp4_w4a4(matrix, begin, end, columns.data(), group.count, weight_scale * input_scale, to.data());
      } else {
        kernels_.nvfp4_w4a16(matrix, begin, end, in.data(), group.count, weight_scale, to.data());
      }
      return;
    }
    std::vector<float> decoded(static_cast<size_t>(table.format == ExpertFormat::kFp8Block ? m.inputs : 0));
    for (int64_t r = begin; r < end; ++r) {
      DenseMatrix matrix{m.data + r * m.inputs * 2, true, m.inputs};
      if (table.format == ExpertFormat::kFp8Block) {
        const auto* grid = reinterpret_cast<const uint16_t*>(m.scales) + r / 128 * ceil_div(m.inputs, 128);
        kernels_.decode_fp8_row(reinterpret_cast<const uint8_t*>(m.data) + r * m.inputs, grid, m.inputs,
                                decoded.data());
        matrix = {decoded.data(), false, m.inputs};
      }
      for (int64_t c = 0; c < group.count; ++c) {
        kernels_.linear(in[static_cast<size_t>(c)], m.inputs, 1, matrix, 0, 1, to[static_cast<size_t>(c)] + r, nullptr,
                        1);
      }
    }
  };
  // Every (group, tile of rows) pair is one piece of work.
  const auto for_tiles = [&](int64_t rows, const auto& body) {
    const int64_t tiles = ceil_div(rows, kRowTile);
    pool_.run(static_cast<int64_t>(groups.size()) * tiles, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % tiles * kRowTile;
        body(groups[static_cast<size_t>(i / tiles)], row, std::min(rows, row + kRowTile));
      }
    });
  };
  const auto for_slots = [&](const auto& body) {
    pool_.run(slots, 4, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) body(slot, args.ids[order[static_cast<size_t>(slot)]]);
    });
  };

  if (args.quantise_activations) {
    for_slots([&](int64_t slot, int64_t expert) {
      const float* source = x + order[static_cast<size_t>(slot)] / args.top_k * hidden;
      quantise(source, hidden, table.scalars[expert * 6 + 3], slot, 0);
      quantise(source, hidden, table.scalars[expert * 6 + 4], slot, 1);
    });
  }
  for_tiles(inner, [&](const Group& group, int64_t begin, int64_t end) {
    product(group, 0, begin, end, x, false, gate);
    product(group, 1, begin, end, x, false, up);
  });
  for_slots([&](int64_t slot, int64_t expert) {
    float* h = gate + slot * inner;
    kernels_.silu_multiply(h, up + slot * inner, inner, h);
    if (args.quantise_activations) {
      quantise(h, inner, table.scalars[expert * 6 + 5], slot, 0);
    } else if (round_inputs_) {
      kernels_.round_to_bf16(h, inner, h);
    }
  });
  for_tiles(hidden,
            [&](const Group& group, int64_t begin, int64_t end) { product(group, 2, begin, end, gate, true, y); });

  // The sums: fixed point, so that their order does not matter; even and odd experts apart.
  std::vector<int32_t> slot_of(static_cast<size_t>(slots));
  for (int64_t i = 0; i < slots; ++i)
    slot_of[static_cast<size_t>(order[static_cast<size_t>(i)])] = static_cast<int32_t>(i);
  std::vector<uint8_t> faulty_token(static_cast<size_t>(args.tokens), 0);
  pool_.run(args.tokens, 1, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> sums(static_cast<size_t>(2 * hidden));
    for (int64_t t = begin; t < end; ++t) {
      std::fill(sums.begin(), sums.end(), 0);
      bool fault = false;
      for (int64_t k = 0; k < args.top_k; ++k) {
        const int64_t slot = slot_of[static_cast<size_t>(t * args.top_k + k)];
        const float p = args.weights[t * args.top_k + k];
        int64_t* half = sums.data() + args.ids[t * args.top_k + k] % 2 * hidden;
        fault = fault || faulty[static_cast<size_t>(slot)] != 0;
        for (int64_t d = 0; d < hidden; ++d) {
          const float term = p * y[slot * hidden + d];
          const bool usable = std::fabs(term) < kLargestTerm;  // false for a NaN too
          const int64_t fixed = usable ? std::llrint(static_cast<double>(term) * 0x1p32) : 0;
          fault = __builtin_add_overflow(half[d], fixed, &half[d]) || fault || !usable;
        }
      }
      for (int64_t d = 0; d < hidden; ++d) {
        args.lower[t * hidden + d] = static_cast<float>(sums[static_cast<size_t>(d)]) * 0x1p-32F;
        args.upper[t * hidden + d] = static_cast<float>(sums[static_cast<size_t>(hidden + d)]) * 0x1p-32F;
      }
      faulty_token[static_cast<size_t>(t)] = fault ? 1 : 0;
    }
  });
  const auto first = std::find(faulty_token.begin(), faulty_token.end(), 1);
  return first == faulty_token.end() ? -1 : first - faulty_token.begin();
}

void HostOps::combine_experts(const float* lower, const float* upper, const float* shared_lower,
                              const float* shared_upper, const float* gate, int64_t tokens, int64_t hidden,
                              float* out) {
  pool_.run(tokens, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float g = 1.0F / (1.0F + std::exp(-gate[t]));
      for (int64_t i = t * hidden; i < (t + 1) * hidden; ++i) {
        out[i] = (lower[i] + g * shared_lower[i]) + (upper[i] + g * shared_upper[i]);
      }
    }
  });
}

}  // namespace tandem::ops::host
