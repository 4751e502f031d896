// Where keys and values lie in the pages, and which tokens a column attends to: what all kernels of attention share.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace tandem::ops::cuda {

inline constexpr int kPageTokens = 64;
inline constexpr int kScaleGroup = 64;  // dimensions to one scale of 8-bit keys and values

__host__ __device__ constexpr int64_t kv_element_bytes(KvType type) {
  return type == KvType::kBF16 ? 2 : type == KvType::kF32 ? 4 : 1;
}
__host__ __device__ constexpr int kv_scale_groups(int64_t head_dim) {
  return static_cast<int>((head_dim + kScaleGroup - 1) / kScaleGroup);
}

// A KvLayer with the distances that kernels need, made on the host.
struct KvView {
  std::byte* pages = nullptr;
  int64_t page_bytes = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int index_dim = 0;
  int ratio = 1;
  KvType type = KvType::kBF16;
  int row_bytes = 0;       // of one token's key of one head
  int64_t values = 0;      // from the keys of a page to its values
  int64_t scales = 0;      // from the keys of a page to its keys' scales
  int64_t index_keys = 0;  // from the keys of a page to its pooled index keys

  explicit KvView(const KvLayer& kv)
      : pages(kv.pages + kv.layer_offset),
        page_bytes(kv.page_bytes),
        kv_heads(static_cast<int>(kv.kv_heads)),
        head_dim(static_cast<int>(kv.head_dim)),
        index_dim(static_cast<int>(kv.index_dim)),
        ratio(kv.ratio > 0 ? static_cast<int>(kv.ratio) : 1),
        type(kv.type),
        row_bytes(static_cast<int>(kv.head_dim * kv_element_bytes(kv.type))) {
    values = static_cast<int64_t>(kv_heads) * kPageTokens * row_bytes;
    scales = 2 * values;
    index_keys = scales;
    if (type == KvType::kInt8) index_keys += int64_t{2} * kv_heads * kPageTokens * groups() * 2;
  }

  __host__ __device__ int groups() const { return kv_scale_groups(head_dim); }
  // Bytes of a pooled key, which has 16 bits with 8-bit keys and values.
  __host__ __device__ int index_row_bytes() const { return index_dim * (type == KvType::kF32 ? 4 : 2); }

#ifdef __CUDACC__
  __device__ std::byte* page(const int32_t* block_table, int64_t token) const {
    return pages + block_table[token / kPageTokens] * page_bytes;
  }
  __device__ int64_t key_offset(int head, int64_t token) const {
    return (static_cast<int64_t>(head) * kPageTokens + token % kPageTokens) * row_bytes;
  }
  // The scales of a token's key; those of its value follow after value_scales().
  __device__ int64_t scale_offset(int head, int64_t token) const {
    return scales + (static_cast<int64_t>(head) * kPageTokens + token % kPageTokens) * groups() * 2;
  }
  __device__ int64_t value_scales() const { return static_cast<int64_t>(kv_heads) * kPageTokens * groups() * 2; }
  __device__ std::byte* index_key(const int32_t* block_table, int block) const {
    const unsigned page_blocks = kPageTokens / static_cast<unsigned>(ratio);
    const unsigned page = static_cast<unsigned>(block) / page_blocks;
    const auto row = static_cast<int>(static_cast<unsigned>(block) - page * page_blocks);
    return pages + block_table[page] * page_bytes + index_keys + row * index_row_bytes();
  }
#endif
};

#ifdef __CUDACC__
// The tokens that a query at `position` attends to, in ascending order. Positions are below 2^31: divisions of 64 bits
// take hundreds of cycles.
struct TokenList {
  int64_t position;
  const int32_t* blocks;  // null: all up to the position
  int ratio;
  int64_t chosen;
  int64_t count;

  __device__ TokenList(int64_t at, const BlockSelection& selection, int64_t column, int block_tokens)
      : position(at), blocks(nullptr), ratio(block_tokens), chosen(0), count(at + 1) {
    if (sees_everything(at, selection, ratio)) return;
    const int32_t most = selection.counts[column];
    if (most == BlockSelection::kEverything) return;
    blocks = selection.blocks + column * selection.budget;
    chosen = static_cast<int64_t>(most) * ratio;
    count = chosen + static_cast<unsigned>(position + 1) % static_cast<unsigned>(ratio);
  }
  // Whether that is known without the choice.
  __device__ static bool sees_everything(int64_t position, const BlockSelection& selection, int ratio) {
    return selection.counts == nullptr ||
           static_cast<unsigned>(position + 1) / static_cast<unsigned>(ratio) <= selection.budget;
  }
  __device__ int64_t token(int64_t i) const {
    if (blocks == nullptr) return i;
    if (i < chosen) {
      const unsigned block = static_cast<unsigned>(i) / static_cast<unsigned>(ratio);
      return static_cast<int64_t>(blocks[block]) * ratio + (i - static_cast<int64_t>(block) * ratio);
    }
    return position + 1 - (count - i);
  }
};
#endif

// How lists are cut into pieces that blocks of threads share out: into as many equal pieces as the card has places for
// blocks, of whole units. The length of a piece follows from the list's own length alone, and so does every sum.
struct Cut {
  int unit = 64;  // tokens, a multiple of kPageTokens
  int most = 1;   // pieces of a list

  __host__ __device__ int64_t piece_tokens(int64_t count) const { return units(count) * unit; }
  // The longest list that is cut into pieces as long as those of a list of `count`.
  __host__ __device__ int64_t longest_alike(int64_t count) const { return units(count) * unit * most; }
  __host__ __device__ int64_t pieces(int64_t count) const {
    const auto tokens = static_cast<unsigned>(piece_tokens(count));
    return (static_cast<unsigned>(count) + tokens - 1) / tokens;
  }
  // Of any list up to `longest`.
  __host__ __device__ int64_t most_pieces(int64_t longest) const {
    const int64_t units = (longest + unit - 1) / unit;
    return units < most ? units : most;
  }

 private:
  __host__ __device__ int64_t units(int64_t count) const {
    const unsigned all = static_cast<unsigned>(unit) * static_cast<unsigned>(most);
    return count <= 0 ? 1 : (static_cast<unsigned>(count) + all - 1) / all;
  }
};

// What the kernels of attention take. A block of the grid works on one piece where `partial` is set, and on the whole
// list otherwise.
struct AttentionArgs {
  KvView kv;
  const Run* runs;
  int each;   // columns of a run
  int group;  // query heads of one kv head
  float scale;
  const float* q;
  const float* q_gate;  // null: answers alone
  float* out;
  BlockSelection selection;  // without counts: everything
  float* partial;            // [columns, heads, pieces, head_dim]: weighted values, not divided by the sum
  float2* states;            // [columns, heads, pieces]: the largest score, the sum of exponentials
  Cut cut;
  int64_t pieces;  // that there is room for, of each column

  __host__ __device__ int64_t heads() const { return static_cast<int64_t>(kv.kv_heads) * group; }
  // Place of a column's query head in q and out, in rows of head_dim.
  __host__ __device__ int64_t row(int64_t column, int kv_head, int g) const {
    return column * heads() + static_cast<int64_t>(kv_head) * group + g;
  }
};

}  // namespace tandem::ops::cuda
