#include "model/attention.h"

#include <cmath>

namespace tandem::model {

GatedAttention::GatedAttention(const Config& config, const std::string& name, int64_t budget, ops::KvType kv_type,
                               WeightLoader& loader, LayoutBuilder& layout)
    : config_(config),
      q_(loader.matrix(name + ".q_proj.weight", 2 * config.heads * config.head_dim, config.hidden)),
      k_(loader.matrix(name + ".k_proj.weight", config.kv_heads * config.head_dim, config.hidden)),
      v_(loader.matrix(name + ".v_proj.weight", config.kv_heads * config.head_dim, config.hidden)),
      o_(loader.matrix(name + ".o_proj.weight", config.hidden, config.heads * config.head_dim)),
      q_norm_(loader.vector(name + ".q_norm.weight", config.head_dim)),
      k_norm_(loader.vector(name + ".k_norm.weight", config.head_dim)),
      kv_type_(kv_type) {
  const int64_t rows = 2 * config.kv_heads * kPageTokens;
  int64_t bytes = rows * config.head_dim * (kv_type == ops::KvType::kF32 ? 4 : kv_type == ops::KvType::kBF16 ? 2 : 1);
  if (kv_type == ops::KvType::kInt8) bytes += rows * base::ceil_div(config.head_dim, int64_t{64}) * 2;
  if (config.sparse()) {
    const int64_t dim = config.indexer_head_dim;
    index_qk_ = loader.matrix(name + ".indexer.index_qk_proj.weight", (config.indexer_heads + 1) * dim, config.hidden);
    index_q_norm_ = loader.vector(name + ".indexer.q_layernorm.weight", dim);
    index_k_norm_ = loader.vector(name + ".indexer.k_layernorm.weight", dim);
    budget_blocks_ = budget / config.indexer_ratio;
    bytes += kPageTokens / config.indexer_ratio * dim * (kv_type == ops::KvType::kF32 ? 4 : 2);
    recent_offset_ = layout.slot_floats(ops::Ops::kRecentKeys * dim);
  }
  page_offset_ = layout.page_bytes(bytes);
}

ops::BlockSelection GatedAttention::take_selection(const Step& step) const {
  return {.budget = budget_blocks_,
          .blocks = step.arena.take<int32_t>(step.tokens * budget_blocks_),
          .counts = step.arena.take<int32_t>(step.tokens)};
}

void GatedAttention::forward(const Step& step, const float* x, float* y, const ops::BlockSelection* selection) const {
  const Arena::Scope scope(step.arena);
  const int64_t tokens = step.tokens;
  const int64_t width = config_.heads * config_.head_dim;
  float* q_gate = step.arena.take<float>(tokens * q_.rows);
  float* k = step.arena.take<float>(tokens * k_.rows);
  float* v = step.arena.take<float>(tokens * v_.rows);
  float* q = step.arena.take<float>(tokens * width);
  float* index_qk = config_.sparse() ? step.arena.take<float>(tokens * index_qk_.rows) : nullptr;
  const ops::Ops::Product products[] = {{q_, q_gate}, {k_, k}, {v_, v}, {index_qk_, index_qk}};
  step.ops.linear_group(x, tokens, std::span(products).first(config_.sparse() ? 4 : 3), false);

  const ops::Rotary rotary{config_.rotary_dims, config_.rope_theta};
  const ops::KvLayer kv{
      .pages = step.pages,
      .page_bytes = step.page_bytes,
      .layer_offset = page_offset_,
      .kv_heads = config_.kv_heads,
      .head_dim = config_.head_dim,
      .index_dim = config_.sparse() ? config_.indexer_head_dim : 0,
      .ratio = config_.indexer_ratio,
      .type = kv_type_,
  };
  float* out = step.arena.take<float>(tokens * width);
  ops::Ops::GatedAttention args{.inputs = {.q_gate = q_gate,
                                           .k = k,
                                           .v = v,
                                           .q_norm = q_norm_,
                                           .k_norm = k_norm_,
                                           .heads = config_.heads,
                                           .eps = step.eps,
                                           .rotary = rotary,
                                           .kv = kv,
                                           .q = q},
                                .index = {},
                                .scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim)),
                                .out = out};
  ops::BlockSelection chosen;
  if (config_.sparse()) {
    chosen = selection != nullptr ? *selection : take_selection(step);
    args.selection = &chosen;
    args.index = {.qk = index_qk,
                  .q_norm = index_q_norm_,
                  .k_norm = index_k_norm_,
                  .heads = config_.indexer_heads,
                  .eps = step.eps,
                  .rotary = rotary,
                  .kv = kv,
                  .recent = recent_offset_,
                  .q = step.arena.take<float>(tokens * config_.indexer_heads * config_.indexer_head_dim)};
  }
  step.ops.gated_attention(step.columns, args);
  step.ops.linear_sum(out, tokens, o_, y, step.arena.take<float>(tokens * config_.hidden));
}

}  // namespace tandem::model
