// Gated attention over paged keys and values, dense and over selected blocks.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "numeric/bf16.h"
#include "ops/host/host_ops.h"

namespace tandem::ops::host {

namespace {

constexpr int64_t kPageTokens = 64;

int64_t element_bytes(const KvLayer& kv) {
  return kv.bf16 ? 2 : 4;
}

std::byte* page_of(const KvLayer& kv, int64_t token) {
  return kv.pages + kv.block_table[static_cast<size_t>(token / kPageTokens)] * kv.page_bytes + kv.layer_offset;
}
std::byte* key_of(const KvLayer& kv, int64_t head, int64_t token) {
  return page_of(kv, token) + (head * kPageTokens + token % kPageTokens) * kv.head_dim * element_bytes(kv);
}
std::byte* value_of(const KvLayer& kv, int64_t head, int64_t token) {
  return key_of(kv, kv.kv_heads + head, token);
}
std::byte* index_key_of(const KvLayer& kv, int64_t block) {
  const int64_t token = block * kv.ratio;
  return key_of(kv, 2 * kv.kv_heads, token - token % kPageTokens) +
         token % kPageTokens / kv.ratio * kv.index_dim * element_bytes(kv);
}

void put(std::byte* to, const float* from, int64_t count, bool bf16) {
  if (!bf16) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* bits = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) bits[i] = numeric::bf16_from_float(from[i]);
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
  TokenList(int64_t position, const BlockSelection::Row* row, int64_t ratio)
      : position_(position), row_(row != nullptr && !row->all ? row : nullptr), ratio_(ratio) {
    if (row_ == nullptr) {
      count_ = position + 1;
    } else {
      chosen_ = static_cast<int64_t>(row_->blocks.size()) * ratio;
      count_ = chosen_ + (position + 1) % ratio;
    }
  }
  int64_t pieces() const { return (count_ + kAttentionPiece - 1) / kAttentionPiece; }
  int64_t begin(int64_t piece) const { return piece * kAttentionPiece; }
  int64_t end(int64_t piece) const { return std::min(count_, begin(piece) + kAttentionPiece); }
  int64_t token(int64_t i) const {
    if (row_ == nullptr) return i;
    if (i < chosen_) return row_->blocks[static_cast<size_t>(i / ratio_)] * ratio_ + i % ratio_;
    return position_ + 1 - (count_ - i);
  }

 private:
  int64_t position_;
  const BlockSelection::Row* row_;
  int64_t ratio_;
  int64_t chosen_ = 0;
  int64_t count_ = 0;
};

void gather(const KvLayer& kv, int64_t head, const TokenList& tokens, int64_t piece, AttentionPiece& out) {
  out.bf16 = kv.bf16;
  out.count = 0;
  for (int64_t i = tokens.begin(piece); i < tokens.end(piece); ++i) {
    const int64_t token = tokens.token(i);
    out.keys[out.count] = key_of(kv, head, token);
    out.values[out.count] = value_of(kv, head, token);
    ++out.count;
  }
}

}  // namespace

void HostOps::attention_inputs(const AttentionInputs& args) {
  const int64_t dim = args.kv.head_dim;
  const int64_t kv_heads = args.kv.kv_heads;
  pool_.run(args.tokens, 4, [&](int64_t begin, int64_t end) {
    std::vector<float> angles(static_cast<size_t>(args.rotary.dims));
    std::vector<float> key(static_cast<size_t>(dim));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = args.position + t;
      rotary_angles(args.rotary, position, angles.data());
      for (int64_t h = 0; h < args.heads; ++h) {
        const float* source = args.q_gate + (t * args.heads + h) * 2 * dim;
        float* q = args.q + (t * args.heads + h) * dim;
        kernels_.rms_norm(source, dim, args.eps, 1.0F, args.q_norm, q);
        rotate(q, args.rotary, angles.data());
        if (round_inputs_) kernels_.round_to_bf16(q, dim, q);
        std::copy_n(source + dim, dim, args.gate + (t * args.heads + h) * dim);
      }
      for (int64_t h = 0; h < kv_heads; ++h) {
        kernels_.rms_norm(args.k + (t * kv_heads + h) * dim, dim, args.eps, 1.0F, args.k_norm, key.data());
        rotate(key.data(), args.rotary, angles.data());
        put(key_of(args.kv, h, position), key.data(), dim, args.kv.bf16);
        put(value_of(args.kv, h, position), args.v + (t * kv_heads + h) * dim, dim, args.kv.bf16);
      }
    }
  });
}

void HostOps::index_inputs(const IndexInputs& args) {
  const int64_t dim = args.kv.index_dim;
  const int64_t ratio = args.kv.ratio;
  const int64_t stride = (args.heads + 1) * dim;
  const auto raw_key = [&](int64_t token) {
    return token >= args.position ? args.qk + (token - args.position) * stride + args.heads * dim
                                  : args.recent + token % kRecentKeys * dim;
  };
  pool_.run(args.tokens, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> angles(static_cast<size_t>(args.rotary.dims));
    std::vector<float> mean(static_cast<size_t>(dim));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = args.position + t;
      rotary_angles(args.rotary, position, angles.data());
      for (int64_t h = 0; h < args.heads; ++h) {
        float* q = args.q + (t * args.heads + h) * dim;
        kernels_.rms_norm(args.qk + t * stride + h * dim, dim, args.eps, 1.0F, args.q_norm, q);
        rotate(q, args.rotary, angles.data());
        if (round_inputs_) kernels_.round_to_bf16(q, dim, q);
      }
      if ((position + 1) % ratio != 0) continue;
      const int64_t first = position + 1 - ratio;
      std::fill(mean.begin(), mean.end(), 0.0F);
      for (int64_t token = first; token <= position; ++token)
        kernels_.add_scaled(mean.data(), raw_key(token), 1.0F, dim);
      for (float& m : mean) m /= static_cast<float>(ratio);
      if (args.kv.bf16) kernels_.round_to_bf16(mean.data(), dim, mean.data());
      kernels_.rms_norm(mean.data(), dim, args.eps, 1.0F, args.k_norm, mean.data());
      rotary_angles(args.rotary, first, angles.data());
      rotate(mean.data(), args.rotary, angles.data());
      put(index_key_of(args.kv, first / ratio), mean.data(), dim, args.kv.bf16);
    }
  });
  for (int64_t t = std::max<int64_t>(0, args.tokens - kRecentKeys); t < args.tokens; ++t) {
    std::copy_n(raw_key(args.position + t), dim, args.recent + (args.position + t) % kRecentKeys * dim);
  }
}

void HostOps::select_blocks(const SelectBlocks& args, BlockSelection& selection) {
  selection.rows.resize(static_cast<size_t>(args.tokens));
  const float scale = 1.0F / std::sqrt(static_cast<float>(args.kv.index_dim));
  pool_.run(args.tokens, 1, [&](int64_t begin, int64_t end) {
    std::vector<const void*> keys;
    std::vector<float> scores;
    for (int64_t t = begin; t < end; ++t) {
      BlockSelection::Row& row = selection.rows[static_cast<size_t>(t)];
      const int64_t visible = (args.position + t + 1) / args.kv.ratio;
      row.blocks.clear();
      row.all = visible <= args.budget_blocks;
      if (row.all) continue;
      keys.resize(static_cast<size_t>(visible));
      scores.resize(static_cast<size_t>(visible));
      for (int64_t b = 0; b < visible; ++b) keys[static_cast<size_t>(b)] = index_key_of(args.kv, b);
      kernels_.block_scores(args.q + t * args.heads * args.kv.index_dim, args.heads, args.kv.index_dim, scale,
                            keys.data(), args.kv.bf16, visible, scores.data());
      row.blocks.resize(static_cast<size_t>(visible));
      std::iota(row.blocks.begin(), row.blocks.end(), 0);
      std::nth_element(row.blocks.begin(), row.blocks.begin() + args.budget_blocks, row.blocks.end(),
                       [&](int32_t a, int32_t b) {
                         const float x = scores[static_cast<size_t>(a)];
                         const float y = scores[static_cast<size_t>(b)];
                         return x > y || (x == y && a < b);
                       });
      row.blocks.resize(static_cast<size_t>(args.budget_blocks));
      std::sort(row.blocks.begin(), row.blocks.end());
    }
  });
}

void HostOps::attention(const Attention& args) {
  const KvLayer& kv = args.kv;
  const int64_t dim = kv.head_dim;
  const int64_t group = args.heads / kv.kv_heads;
  const auto list = [&](int64_t t) {
    const BlockSelection::Row* row =
        args.selection != nullptr ? &args.selection->rows[static_cast<size_t>(t)] : nullptr;
    return TokenList(args.position + t, row, kv.ratio);
  };
  const auto attend = [&](int64_t t, int64_t head, const AttentionPiece& piece, SoftmaxState* states, float* acc) {
    for (int64_t g = 0; g < group; ++g) {
      kernels_.attention_piece(args.q + (t * args.heads + head * group + g) * dim, dim, args.scale, piece, states[g],
                               acc + g * dim);
    }
  };
  const auto finish = [&](int64_t t, int64_t head, const SoftmaxState* states, const float* acc) {
    for (int64_t g = 0; g < group; ++g) {
      float* out = args.out + (t * args.heads + head * group + g) * dim;
      for (int64_t d = 0; d < dim; ++d) out[d] = acc[g * dim + d] / states[g].sum;
    }
  };
  const SoftmaxState empty{-INFINITY, 0.0F};
  const int64_t tasks = args.tokens * kv.kv_heads;
  const int64_t most_pieces = list(args.tokens - 1).pieces();
  if (tasks >= 4 * pool_.threads() || most_pieces == 1) {
    pool_.run(tasks, 1, [&](int64_t begin, int64_t end) {
      std::vector<SoftmaxState> states(static_cast<size_t>(group));
      std::vector<float> acc(static_cast<size_t>(group * dim));
      AttentionPiece piece;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t t = task / kv.kv_heads;
        const int64_t head = task % kv.kv_heads;
        const TokenList tokens = list(t);
        std::fill(states.begin(), states.end(), empty);
        std::fill(acc.begin(), acc.end(), 0.0F);
        for (int64_t p = 0; p < tokens.pieces(); ++p) {
          gather(kv, head, tokens, p, piece);
          attend(t, head, piece, states.data(), acc.data());
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
    AttentionPiece piece;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t task = i / most_pieces;
      const TokenList tokens = list(task / kv.kv_heads);
      if (i % most_pieces >= tokens.pieces()) continue;
      std::fill_n(states + i * group, group, empty);
      std::fill_n(partial + i * group * dim, group * dim, 0.0F);
      gather(kv, task % kv.kv_heads, tokens, i % most_pieces, piece);
      attend(task / kv.kv_heads, task % kv.kv_heads, piece, states + i * group, partial + i * group * dim);
    }
  });
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t first = task * most_pieces;
    const int64_t pieces = list(task / kv.kv_heads).pieces();
    for (int64_t p = 1; p < pieces; ++p) {
      for (int64_t g = 0; g < group; ++g) {
        const int64_t from = (first + p) * group + g;
        kernels_.attention_merge(states[first * group + g], partial + (first * group + g) * dim, states[from],
                                 partial + from * dim, dim);
      }
    }
    finish(task / kv.kv_heads, task % kv.kv_heads, states + first * group, partial + first * group * dim);
  }
}

}  // namespace tandem::ops::host
