// Gated attention over paged keys and values, dense and over selected blocks.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "numeric/bf16.h"
#include "numeric/int8_kv.h"
#include "ops/host/host_ops.h"

namespace tandem::ops::host {

namespace {

constexpr int64_t kPageTokens = 64;

// The pages of one run.
struct Pages {
  const KvLayer& kv;
  const int32_t* block_table;

  int64_t element_bytes() const { return kv.type == KvType::kBF16 ? 2 : kv.type == KvType::kF32 ? 4 : 1; }
  int64_t groups() const { return numeric::int8_kv_groups(kv.head_dim); }
  std::byte* page(int64_t token) const {
    return kv.pages + block_table[token / kPageTokens] * kv.page_bytes + kv.layer_offset;
  }
  std::byte* key(int64_t head, int64_t token) const {
    return page(token) + (head * kPageTokens + token % kPageTokens) * kv.head_dim * element_bytes();
  }
  std::byte* value(int64_t head, int64_t token) const { return key(kv.kv_heads + head, token); }
  // Of a key; a value's are those of head kv_heads + head.
  uint16_t* scales(int64_t head, int64_t token) const {
    const int64_t row = head * kPageTokens + token % kPageTokens;
    return reinterpret_cast<uint16_t*>(page(token) + 2 * kv.kv_heads * kPageTokens * kv.head_dim) + row * groups();
  }
  std::byte* index_key(int64_t block) const {
    const int64_t token = block * kv.ratio;
    const int64_t first = token - token % kPageTokens;
    std::byte* keys = kv.type == KvType::kInt8 ? reinterpret_cast<std::byte*>(scales(2 * kv.kv_heads, first))
                                               : key(2 * kv.kv_heads, first);
    return keys + token % kPageTokens / kv.ratio * kv.index_dim * (kv.type == KvType::kF32 ? 4 : 2);
  }

  // Appends one token's key (of head `row`) or value (kv_heads + head).
  void put_row(int64_t row, int64_t token, const float* from) const;
  // One token's key or value in FP32.
  void decode_row(int64_t row, int64_t token, float* to) const;
};

void put(std::byte* to, const float* from, int64_t count, bool bf16) {
  if (!bf16) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* bits = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) bits[i] = numeric::bf16_from_float(from[i]);
}

void Pages::put_row(int64_t row, int64_t token, const float* from) const {
  std::byte* to = key(row, token);
  if (kv.type != KvType::kInt8) return put(to, from, kv.head_dim, kv.type == KvType::kBF16);
  for (int64_t g = 0; g < groups(); ++g) {
    const int64_t begin = g * numeric::kInt8KvGroup;
    const int64_t count = std::min(numeric::kInt8KvGroup, kv.head_dim - begin);
    scales(row, token)[g] = numeric::int8_kv_encode(from + begin, count, reinterpret_cast<int8_t*>(to) + begin);
  }
}

void Pages::decode_row(int64_t row, int64_t token, float* to) const {
  const auto* codes = reinterpret_cast<const int8_t*>(key(row, token));
  for (int64_t g = 0; g < groups(); ++g) {
    const float scale = numeric::f16_to_float(scales(row, token)[g]);
    const int64_t end = std::min(kv.head_dim, (g + 1) * numeric::kInt8KvGroup);
    for (int64_t d = g * numeric::kInt8KvGroup; d < end; ++d) to[d] = static_cast<float>(codes[d]) * scale;
  }
}

// Cosine and sine of each pair at one position: [dims / 2] each. Frequencies and angles are rounded to FP32 as the
// reference implementation does; at positions of thousands that rounding is larger than the tolerance of the goldens.
void rotary_angles(const Rotary& rotary, int64_t position, float* angles) {
  const int64_t pairs = rotary.dims / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    const auto power =
        static_cast<float>(std::pow(rotary.theta, static_cast<double>(2 * i) / static_cast<double>(rotary.dims)));
    const float angle = static_cast<float>(position) * (1.0F / power);
    angles[i] = std::cos(angle);
    angles[pairs + i] = std::sin(angle);
  }
}

void rotate(float* x, const Rotary& rotary, const float* angles) {
  const int64_t pairs = rotary.dims / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[i];
    const float b = x[pairs + i];
    x[i] = a * angles[i] - b * angles[pairs + i];
    x[pairs + i] = b * angles[i] + a * angles[pairs + i];
  }
}

// The tokens that a query at `position` attends to, in pieces of the fixed size.
class TokenList {
 public:
  TokenList(int64_t position, const BlockSelection* selection, int64_t column, int64_t ratio)
      : position_(position), ratio_(ratio), count_(position + 1) {
    if (selection == nullptr || selection->counts[column] == BlockSelection::kEverything) return;
    blocks_ = selection->blocks + column * selection->budget;
    chosen_ = selection->counts[column] * ratio;
    count_ = chosen_ + (position + 1) % ratio;
  }
  int64_t pieces() const { return (count_ + kAttentionPiece - 1) / kAttentionPiece; }
  int64_t begin(int64_t piece) const { return piece * kAttentionPiece; }
  int64_t end(int64_t piece) const { return std::min(count_, begin(piece) + kAttentionPiece); }
  int64_t token(int64_t i) const {
    if (blocks_ == nullptr) return i;
    if (i < chosen_) return blocks_[i / ratio_] * ratio_ + i % ratio_;
    return position_ + 1 - (count_ - i);
  }

 private:
  int64_t position_;
  int64_t ratio_;
  int64_t count_;
  const int32_t* blocks_ = nullptr;
  int64_t chosen_ = 0;
};

// The keys and values of a piece; 8-bit ones in FP32, in memory that is kept from piece to piece.
class Gathered {
 public:
  const AttentionPiece& gather(const Pages& pages, int64_t head, const TokenList& tokens, int64_t piece) {
    const KvLayer& kv = pages.kv;
    const bool codes = kv.type == KvType::kInt8;
    if (codes) decoded_.resize(static_cast<size_t>(2 * kAttentionPiece * kv.head_dim));
    piece_.bf16 = kv.type == KvType::kBF16;
    piece_.count = 0;
    for (int64_t i = tokens.begin(piece); i < tokens.end(piece); ++i) {
      const int64_t token = tokens.token(i);
      const void* key = pages.key(head, token);
      const void* value = pages.value(head, token);
      if (codes) {
        float* to = decoded_.data() + 2 * piece_.count * kv.head_dim;
        pages.decode_row(head, token, to);
        pages.decode_row(kv.kv_heads + head, token, to + kv.head_dim);
        key = to;
        value = to + kv.head_dim;
      }
      piece_.keys[piece_.count] = key;
      piece_.values[piece_.count] = value;
      ++piece_.count;
    }
    return piece_;
  }

 private:
  AttentionPiece piece_;
  std::vector<float> decoded_;
};

}  // namespace

void HostOps::attention_inputs(const Columns& columns, const AttentionInputs& args) {
  const int64_t dim = args.kv.head_dim;
  const int64_t kv_heads = args.kv.kv_heads;
  pool_.run(columns.count(), 4, [&](int64_t begin, int64_t end) {
    std::vector<float> angles(static_cast<size_t>(args.rotary.dims));
    std::vector<float> key(static_cast<size_t>(dim));
    for (int64_t c = begin; c < end; ++c) {
      const Run& run = columns.runs[static_cast<size_t>(c / columns.each)];
      if (c % columns.each >= run.tokens) continue;
      const int64_t position = run.position + c % columns.each;
      const Pages pages{args.kv, run.block_table};
      rotary_angles(args.rotary, position, angles.data());
      for (int64_t h = 0; h < args.heads; ++h) {
        const float* source = args.q_gate + (c * args.heads + h) * 2 * dim;
        float* q = args.q + (c * args.heads + h) * dim;
        kernels_.rms_norm(source, dim, args.eps, 1.0F, args.q_norm, q);
        rotate(q, args.rotary, angles.data());
        if (round_inputs_) kernels_.round_to_bf16(q, dim, q);
      }
      for (int64_t h = 0; h < kv_heads; ++h) {
        kernels_.rms_norm(args.k + (c * kv_heads + h) * dim, dim, args.eps, 1.0F, args.k_norm, key.data());
        rotate(key.data(), args.rotary, angles.data());
        pages.put_row(h, position, key.data());
        pages.put_row(kv_heads + h, position, args.v + (c * kv_heads + h) * dim);
      }
    }
  });
}

void HostOps::index_inputs(const Columns& columns, const IndexInputs& args) {
  const int64_t stride = (args.heads + 1) * args.kv.index_dim;
  for (size_t r = 0; r < columns.runs.size(); ++r) {
    const auto first = static_cast<int64_t>(r) * columns.each;
    index_run(columns.runs[r], args, args.qk + first * stride, args.q + first * args.heads * args.kv.index_dim);
  }
}

void HostOps::index_run(const Run& run, const IndexInputs& args, const float* qk, float* queries) {
  const int64_t dim = args.kv.index_dim;
  const int64_t ratio = args.kv.ratio;
  const int64_t stride = (args.heads + 1) * dim;
  const bool bf16 = args.kv.type != KvType::kF32;
  const Pages pages{args.kv, run.block_table};
  auto* recent = reinterpret_cast<float*>(run.slot + args.recent);
  const auto raw_key = [&](int64_t token) {
    return token >= run.position ? qk + (token - run.position) * stride + args.heads * dim
                                 : recent + token % kRecentKeys * dim;
  };
  pool_.run(run.tokens, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> angles(static_cast<size_t>(args.rotary.dims));
    std::vector<float> mean(static_cast<size_t>(dim));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = run.position + t;
      rotary_angles(args.rotary, position, angles.data());
      for (int64_t h = 0; h < args.heads; ++h) {
        float* q = queries + (t * args.heads + h) * dim;
        kernels_.rms_norm(qk + t * stride + h * dim, dim, args.eps, 1.0F, args.q_norm, q);
        rotate(q, args.rotary, angles.data());
        if (round_inputs_) kernels_.round_to_bf16(q, dim, q);
      }
      if ((position + 1) % ratio != 0) continue;
      const int64_t first = position + 1 - ratio;
      std::fill(mean.begin(), mean.end(), 0.0F);
      for (int64_t token = first; token <= position; ++token)
        kernels_.add_scaled(mean.data(), raw_key(token), 1.0F, dim);
      for (float& m : mean) m /= static_cast<float>(ratio);
      if (bf16) kernels_.round_to_bf16(mean.data(), dim, mean.data());
      kernels_.rms_norm(mean.data(), dim, args.eps, 1.0F, args.k_norm, mean.data());
      rotary_angles(args.rotary, first, angles.data());
      rotate(mean.data(), args.rotary, angles.data());
      put(pages.index_key(first / ratio), mean.data(), dim, bf16);
    }
  });
  for (int64_t t = std::max<int64_t>(0, run.tokens - kRecentKeys); t < run.tokens; ++t) {
    std::copy_n(raw_key(run.position + t), dim, recent + (run.position + t) % kRecentKeys * dim);
  }
}

void HostOps::select_blocks(const Columns& columns, const SelectBlocks& args, const BlockSelection& selection) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(args.kv.index_dim));
  const bool bf16 = args.kv.type != KvType::kF32;
  pool_.run(columns.count(), 1, [&](int64_t begin, int64_t end) {
    std::vector<const void*> keys;
    std::vector<float> scores;
    std::vector<int32_t> order;
    for (int64_t c = begin; c < end; ++c) {
      const Run& run = columns.runs[static_cast<size_t>(c / columns.each)];
      const int64_t offset = c % columns.each;
      const int64_t visible = offset < run.tokens ? (run.position + offset + 1) / args.kv.ratio : 0;
      selection.counts[c] = BlockSelection::kEverything;
      if (visible <= selection.budget) continue;
      const Pages pages{args.kv, run.block_table};
      keys.resize(static_cast<size_t>(visible));
      scores.resize(static_cast<size_t>(visible));
      for (int64_t b = 0; b < visible; ++b) keys[static_cast<size_t>(b)] = pages.index_key(b);
      kernels_.block_scores(args.q + c * args.heads * args.kv.index_dim, args.heads, args.kv.index_dim, scale,
                            keys.data(), bf16, visible, scores.data());
      order.resize(static_cast<size_t>(visible));
      std::iota(order.begin(), order.end(), 0);
      std::nth_element(order.begin(), order.begin() + selection.budget, order.end(), [&](int32_t a, int32_t b) {
        const float x = scores[static_cast<size_t>(a)];
        const float y = scores[static_cast<size_t>(b)];
        return x > y || (x == y && a < b);
      });
      std::sort(order.begin(), order.begin() + selection.budget);
      std::copy_n(order.begin(), selection.budget, selection.blocks + c * selection.budget);
      selection.counts[c] = static_cast<int32_t>(selection.budget);
    }
  });
}

void HostOps::attention(const Columns& columns, const Attention& args) {
  int64_t first = 0;
  for (const Run& run : columns.runs) {
    if (run.tokens > 0) attend_run(run, first, args);
    first += columns.each;
  }
}

void HostOps::attend_run(const Run& run, int64_t first, const Attention& args) {
  const KvLayer& kv = args.kv;
  const int64_t dim = kv.head_dim;
  const int64_t group = args.heads / kv.kv_heads;
  const Pages pages{kv, run.block_table};
  const float* q = args.q + first * args.heads * dim;
  float* answers = args.out + first * args.heads * dim;
  const auto list = [&](int64_t t) { return TokenList(run.position + t, args.selection, first + t, kv.ratio); };
  const auto attend = [&](int64_t t, int64_t head, const AttentionPiece& piece, SoftmaxState* states, float* acc) {
    for (int64_t g = 0; g < group; ++g) {
      kernels_.attention_piece(q + (t * args.heads + head * group + g) * dim, dim, args.scale, piece, states[g],
                               acc + g * dim);
    }
  };
  const auto finish = [&](int64_t t, int64_t head, const SoftmaxState* states, const float* acc) {
    for (int64_t g = 0; g < group; ++g) {
      const int64_t row = t * args.heads + head * group + g;
      float* out = answers + row * dim;
      for (int64_t d = 0; d < dim; ++d) out[d] = acc[g * dim + d] / states[g].sum;
      if (args.q_gate == nullptr) continue;
      kernels_.multiply_gate(out, args.q_gate + (2 * (first * args.heads + row) + 1) * dim, dim, true);
    }
  };
  const SoftmaxState empty{-INFINITY, 0.0F};
  const int64_t tasks = run.tokens * kv.kv_heads;
  // Where blocks are chosen, the last column is not always the one with the longest list.
  int64_t most_pieces = 0;
  for (int64_t t = 0; t < run.tokens; ++t) most_pieces = std::max(most_pieces, list(t).pieces());
  if (tasks >= 4 * pool_.threads() || most_pieces == 1) {
    pool_.run(tasks, 1, [&](int64_t begin, int64_t end) {
      std::vector<SoftmaxState> states(static_cast<size_t>(group));
      std::vector<float> acc(static_cast<size_t>(group * dim));
      Gathered gathered;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t t = task / kv.kv_heads;
        const int64_t head = task % kv.kv_heads;
        const TokenList tokens = list(t);
        std::fill(states.begin(), states.end(), empty);
        std::fill(acc.begin(), acc.end(), 0.0F);
        for (int64_t p = 0; p < tokens.pieces(); ++p) {
          attend(t, head, gathered.gather(pages, head, tokens, p), states.data(), acc.data());
        }
        finish(t, head, states.data(), acc.data());
      }
    });
    return;
  }
  // Few columns over a long context: the pieces themselves are shared out, then merged in index order.
  float* partial = partial_.get(tasks * most_pieces * group * dim);
  SoftmaxState* states = partial_state_.get(tasks * most_pieces * group);
  pool_.run(tasks * most_pieces, 1, [&](int64_t begin, int64_t end) {
    Gathered gathered;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t task = i / most_pieces;
      const TokenList tokens = list(task / kv.kv_heads);
      if (i % most_pieces >= tokens.pieces()) continue;
      std::fill_n(states + i * group, group, empty);
      std::fill_n(partial + i * group * dim, group * dim, 0.0F);
      const AttentionPiece& piece = gathered.gather(pages, task % kv.kv_heads, tokens, i % most_pieces);
      attend(task / kv.kv_heads, task % kv.kv_heads, piece, states + i * group, partial + i * group * dim);
    }
  });
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t start = task * most_pieces;
    const int64_t pieces = list(task / kv.kv_heads).pieces();
    for (int64_t p = 1; p < pieces; ++p) {
      for (int64_t g = 0; g < group; ++g) {
        const int64_t from = (start + p) * group + g;
        kernels_.attention_merge(states[start * group + g], partial + (start * group + g) * dim, states[from],
                                 partial + from * dim, dim);
      }
    }
    finish(task / kv.kv_heads, task % kv.kv_heads, states + start * group, partial + start * group * dim);
  }
}

}  // namespace tandem::ops::host
