#include "model/delta_net.h"

namespace tandem::model {

GatedDeltaNet::GatedDeltaNet(const Config& config, const std::string& name, WeightLoader& loader, LayoutBuilder& layout)
    : config_(config),
      channels_(2 * config.key_heads * config.key_head_dim + config.value_heads * config.value_head_dim),
      qkv_(loader.matrix(name + ".in_proj_qkv.weight", channels_, config.hidden)),
      z_(loader.matrix(name + ".in_proj_z.weight", config.value_heads * config.value_head_dim, config.hidden)),
      a_(loader.matrix(name + ".in_proj_a.weight", config.value_heads, config.hidden)),
      b_(loader.matrix(name + ".in_proj_b.weight", config.value_heads, config.hidden)),
      out_(loader.matrix(name + ".out_proj.weight", config.hidden, config.value_heads * config.value_head_dim)),
      conv_(loader.convolution(name + ".conv1d.weight", channels_, config.conv_kernel)),
      a_log_(loader.vector(name + ".A_log", config.value_heads)),
      dt_bias_(loader.vector(name + ".dt_bias", config.value_heads)),
      norm_(loader.vector(name + ".norm.weight", config.value_head_dim)),
      state_offset_(layout.slot_floats(config.value_heads * config.key_head_dim * config.value_head_dim)),
      history_offset_(layout.slot_floats((config.conv_kernel - 1) * channels_)) {}

void GatedDeltaNet::forward(const Step& step, const float* x, float* y) const {
  const Arena::Scope scope(step.arena);
  const int64_t tokens = step.tokens;
  const int64_t width = config_.value_heads * config_.value_head_dim;
  float* qkv = step.arena.take<float>(tokens * channels_);
  float* z = step.arena.take<float>(tokens * width);
  float* out = step.arena.take<float>(tokens * width);
  const ops::Ops::Product wide[] = {{qkv_, qkv}, {z_, z}};
  step.ops.linear_group(x, tokens, wide, false);
  step.ops.gated_delta_net(step.columns, {.x = x,
                                          .a_proj = a_,
                                          .b_proj = b_,
                                          .qkv = qkv,
                                          .conv = conv_,
                                          .kernel = config_.conv_kernel,
                                          .history = history_offset_,
                                          .z = z,
                                          .norm = norm_,
                                          .eps = step.eps,
                                          .sigmoid = config_.output_gate_sigmoid,
                                          .net = {.a_log = a_log_,
                                                  .dt_bias = dt_bias_,
                                                  .key_heads = config_.key_heads,
                                                  .value_heads = config_.value_heads,
                                                  .key_dim = config_.key_head_dim,
                                                  .value_dim = config_.value_head_dim,
                                                  .state = state_offset_,
                                                  .out = out},
                                          .convolved = step.arena.take<float>(tokens * channels_),
                                          .a = step.arena.take<float>(tokens * config_.value_heads),
                                          .b = step.arena.take<float>(tokens * config_.value_heads)});
  step.ops.linear_sum(out, tokens, out_, y, step.arena.take<float>(tokens * config_.hidden));
}

}  // namespace tandem::model
