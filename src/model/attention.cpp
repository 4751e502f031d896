#include "model/attention.h"

#include <cmath>

namespace tandem::model {

GatedAttention::GatedAttention(const Config& config, const std::string& name, int64_t budget, bool bf16_cache,
                               WeightLoader& loader, LayoutBuilder& layout)
    : config_(config),
      q_(loader.matrix(name + ".q_proj.weight", 2 * config.heads * config.head_dim, config.hidden)),
      k_(loader.matrix(name + ".k_proj.weight", config.kv_heads * config.head_dim, config.hidden)),
      v_(loader.matrix(name + ".v_proj.weight", config.kv_heads * config.head_dim, config.hidden)),
      o_(loader.matrix(name + ".o_proj.weight", config.hidden, config.heads * config.head_dim)),
      q_norm_(loader.vector(name + ".q_norm.weight", config.head_dim)),
      k_norm_(loader.vector(name + ".k_norm.weight", config.head_dim)),
      bf16_cache_(bf16_cache) {
  int64_t elements = 2 * config.kv_heads * kPageTokens * config.head_dim;
  if (config.sparse()) {
    const int64_t dim = config.indexer_head_dim;
    index_qk_ = loader.matrix(name + ".indexer.index_qk_proj.weight", (config.indexer_heads + 1) * dim, config.hidden);
    index_q_norm_ = loader.vector(name + ".indexer.q_layernorm.weight", dim);
    index_k_norm_ = loader.vector(name + ".indexer.k_layernorm.weight", dim);
    budget_blocks_ = budget / config.indexer_ratio;
    elements += kPageTokens / config.indexer_ratio * dim;
    recent_offset_ = layout.slot_floats(ops::Ops::kRecentKeys * dim);
  }
  page_offset_ = layout.page_bytes(elements * (bf16_cache ? 2 : 4));
}

void GatedAttention::forward(const Step& step, const float* x, float* y, ops::BlockSelection* selection) const {
  const Arena::Scope scope(step.arena);
  const int64_t tokens = step.tokens;
  const int64_t width = config_.heads * config_.head_dim;
  float* q_gate = step.arena.take<float>(tokens * q_.rows);
  float* k = step.arena.take<float>(tokens * k_.rows);
  float* v = step.arena.take<float>(tokens * v_.rows);
  float* q = step.arena.take<float>(tokens * width);
  float* gate = step.arena.take<float>(tokens * width);
  step.ops.linear(x, tokens, q_, false, q_gate);
  step.ops.linear(x, tokens, k_, false, k);
  step.ops.linear(x, tokens, v_, false, v);

  const ops::Rotary rotary{config_.rotary_dims, config_.rope_theta};
  const ops::KvLayer kv{
      .pages = step.view.pages,
      .page_bytes = step.page_bytes,
      .layer_offset = page_offset_,
      .block_table = step.view.block_table,
      .kv_heads = config_.kv_heads,
      .head_dim = config_.head_dim,
      .index_dim = config_.sparse() ? config_.indexer_head_dim : 0,
      .ratio = config_.indexer_ratio,
      .bf16 = bf16_cache_,
  };
  step.ops.attention_inputs({.q_gate = q_gate,
                             .k = k,
                             .v = v,
                             .q_norm = q_norm_,
                             .k_norm = k_norm_,
                             .tokens = tokens,
                             .position = step.position,
                             .heads = config_.heads,
                             .eps = step.eps,
                             .rotary = rotary,
                             .kv = kv,
                             .q = q,
                             .gate = gate});

  ops::BlockSelection own;
  ops::BlockSelection& chosen = selection != nullptr ? *selection : own;
  if (config_.sparse()) {
    float* index_qk = step.arena.take<float>(tokens * index_qk_.rows);
    float* index_q = step.arena.take<float>(tokens * config_.indexer_heads * config_.indexer_head_dim);
    step.ops.linear(x, tokens, index_qk_, false, index_qk);
    step.ops.index_inputs({.qk = index_qk,
                           .q_norm = index_q_norm_,
                           .k_norm = index_k_norm_,
                           .tokens = tokens,
                           .position = step.position,
                           .heads = config_.indexer_heads,
                           .eps = step.eps,
                           .rotary = rotary,
                           .kv = kv,
                           .recent = step.slot(recent_offset_),
                           .q = index_q});
    step.ops.select_blocks({.q = index_q,
                            .tokens = tokens,
                            .position = step.position,
                            .heads = config_.indexer_heads,
                            .budget_blocks = budget_blocks_,
                            .kv = kv},
                           chosen);
  }
  float* out = step.arena.take<float>(tokens * width);
  step.ops.attention({.q = q,
                      .tokens = tokens,
                      .position = step.position,
                      .heads = config_.heads,
                      .scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim)),
                      .kv = kv,
                      .selection = config_.sparse() ? &chosen : nullptr,
                      .out = out});
  step.ops.sigmoid_gate(out, gate, tokens * width);
  float* upper = step.arena.take<float>(tokens * config_.hidden);
  step.ops.linear_halves(out, tokens, o_, y, upper);
  step.ops.add(y, upper, tokens * config_.hidden);
}

}  // namespace tandem::model
