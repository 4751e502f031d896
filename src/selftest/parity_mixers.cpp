// Operations of mixers: convolution, Gated DeltaNet, attention and the index of its blocks.
#include <algorithm>
#include <fmt/format.h>

#include "selftest/parity_parts.h"

namespace tandem::selftest {

void ParityOps::causal_conv(const Columns& columns, const float* x, int64_t channels, const float* weight,
                            int64_t kernel, int64_t dilation, int64_t history, float* out) {
  const int64_t floats = (kernel - 1) * dilation * channels;
  HostColumns host(*this, columns);
  if (!planning_) host.with_slot(history, floats);
  card_.causal_conv(columns, x, channels, weight, kernel, dilation, history, out);
  if (planning_) return;
  const int64_t tokens = columns.count();
  std::vector<float> want(static_cast<size_t>(tokens * channels));
  host_.causal_conv(host.columns(), fetch(x, tokens * channels).data(), channels,
                    kept_floats(weight, kernel * channels), kernel, dilation, history, want.data());
  const std::string where = fmt::format("[{}, {}]", tokens, channels);
  compare("causal_conv", where, fetch(out, tokens * channels), want, kElementwise);
  compare("causal_conv", where + " history", host.card_slot_values(), host.slot_values(), 0);
}

void ParityOps::delta_net(const Columns& columns, const DeltaNet& args) {
  const int64_t floats = args.value_heads * args.key_dim * args.value_dim;
  HostColumns host(*this, columns);
  if (!planning_) host.with_slot(args.state, floats);
  card_.delta_net(columns, args);
  if (planning_) return;
  const int64_t tokens = columns.count();
  const int64_t stride = 2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim;
  const int64_t width = args.value_heads * args.value_dim;
  std::vector<float> want(static_cast<size_t>(tokens * width));
  const auto qkv = fetch(args.qkv, tokens * stride);
  const auto a = fetch(args.a, tokens * args.value_heads);
  const auto b = fetch(args.b, tokens * args.value_heads);
  DeltaNet twin = args;
  twin.qkv = qkv.data();
  twin.a = a.data();
  twin.b = b.data();
  twin.a_log = kept_floats(args.a_log, args.value_heads);
  twin.dt_bias = kept_floats(args.dt_bias, args.value_heads);
  twin.out = want.data();
  host_.delta_net(host.columns(), twin);
  const std::string where = fmt::format("{} tokens from {}", tokens, columns.runs[0].position);
  compare("delta_net", where, fetch(args.out, tokens * width), want, 1e-4);
  compare("delta_net", where + " state", host.card_slot_values(), host.slot_values(), 1e-4);
}

void ParityOps::gated_norm(float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim, const float* weight,
                           float eps, bool sigmoid) {
  const int64_t count = tokens * heads * dim;
  auto want = planning_ ? std::vector<float>() : fetch(x, count);
  card_.gated_norm(x, z, tokens, heads, dim, weight, eps, sigmoid);
  if (planning_) return;
  host_.gated_norm(want.data(), fetch(z, count).data(), tokens, heads, dim, kept_floats(weight, dim), eps, sigmoid);
  compare("gated_norm", fmt::format("[{}, {}, {}]", tokens, heads, dim), fetch(x, count), want, kElementwise);
}

void ParityOps::gated_delta_net(const Columns& columns, const GatedDeltaNet& args) {
  // Many columns take the operations that this one is made of, on a card too: each is compared by itself.
  if (columns.count() > ops::kMostFewColumns) return Ops::gated_delta_net(columns, args);
  const DeltaNet& net = args.net;
  const int64_t channels = 2 * net.key_heads * net.key_dim + net.value_heads * net.value_dim;
  const int64_t width = net.value_heads * net.value_dim;
  // Matrices and history, and what lies between them in a slot.
  const int64_t state_end = net.state + 4 * net.value_heads * net.key_dim * net.value_dim;
  const int64_t history_end = args.history + 4 * (args.kernel - 1) * channels;
  const int64_t begin = std::min(net.state, args.history);
  HostColumns host(*this, columns);
  if (!planning_) host.with_slot(begin, (std::max(state_end, history_end) - begin) / 4);
  card_.gated_delta_net(columns, args);
  if (planning_) return;
  const int64_t tokens = columns.count();
  const auto x = fetch(args.x, tokens * args.a_proj.inputs);
  const auto qkv = fetch(args.qkv, tokens * channels);
  const auto z = fetch(args.z, tokens * width);
  std::vector<float> want(static_cast<size_t>(tokens * width));
  std::vector<float> convolved(qkv.size());
  std::vector<float> gates(static_cast<size_t>(2 * tokens * net.value_heads));
  GatedDeltaNet twin = args;
  twin.x = x.data();
  twin.a_proj = kept_weight(args.a_proj);
  twin.b_proj = kept_weight(args.b_proj);
  twin.qkv = qkv.data();
  twin.conv = kept_floats(args.conv, args.kernel * channels);
  twin.z = z.data();
  twin.norm = kept_floats(args.norm, net.value_dim);
  twin.net.a_log = kept_floats(net.a_log, net.value_heads);
  twin.net.dt_bias = kept_floats(net.dt_bias, net.value_heads);
  twin.net.out = want.data();
  twin.convolved = convolved.data();
  twin.a = gates.data();
  twin.b = gates.data() + tokens * net.value_heads;
  host_.gated_delta_net(host.columns(), twin);
  const std::string where = fmt::format("{} tokens from {}", tokens, columns.runs[0].position);
  compare("gated_delta_net", where, fetch(net.out, tokens * width), want, 1e-4);
  compare("gated_delta_net", where + " state", host.card_slot_values(), host.slot_values(), 1e-4);
}

std::vector<float> ParityOps::host_queries(HostColumns& host, const AttentionInputs& args) {
  const int64_t tokens = host.columns().count();
  const int64_t dim = args.kv.head_dim;
  const auto q_gate = fetch(args.q_gate, tokens * args.heads * 2 * dim);
  const auto k = fetch(args.k, tokens * args.kv.kv_heads * dim);
  const auto v = fetch(args.v, tokens * args.kv.kv_heads * dim);
  std::vector<float> q(static_cast<size_t>(tokens * args.heads * dim));
  AttentionInputs twin = args;
  twin.q_gate = q_gate.data();
  twin.k = k.data();
  twin.v = v.data();
  twin.q_norm = kept_floats(args.q_norm, dim);
  twin.k_norm = kept_floats(args.k_norm, dim);
  twin.kv = host.kv(args.kv);
  twin.q = q.data();
  host_.attention_inputs(host.columns(), twin);
  return q;
}

void ParityOps::attention_inputs(const Columns& columns, const AttentionInputs& args) {
  HostColumns host(*this, columns);
  if (!planning_) host.with_pages(args.kv);
  card_.attention_inputs(columns, args);
  if (planning_) return;
  const auto q = host_queries(host, args);
  const std::string where = fmt::format("{} tokens from {}", columns.count(), columns.runs[0].position);
  compare("attention_inputs", where, fetch(args.q, static_cast<int64_t>(q.size())), q, rounding_tolerance());
  compare_pages("attention_inputs", where, args.kv, host.card_pages(), host.pages());
}

std::vector<float> ParityOps::host_index_queries(HostColumns& host, const IndexInputs& args) {
  const int64_t tokens = host.columns().count();
  const int64_t dim = args.kv.index_dim;
  const auto qk = fetch(args.qk, tokens * (args.heads + 1) * dim);
  std::vector<float> q(static_cast<size_t>(tokens * args.heads * dim));
  IndexInputs twin = args;
  twin.qk = qk.data();
  twin.q_norm = kept_floats(args.q_norm, dim);
  twin.k_norm = kept_floats(args.k_norm, dim);
  twin.kv = host.kv(args.kv);
  twin.q = q.data();
  host_.index_inputs(host.columns(), twin);
  return q;
}

void ParityOps::index_inputs(const Columns& columns, const IndexInputs& args) {
  HostColumns host(*this, columns);
  if (!planning_) host.with_pages(args.kv).with_slot(args.recent, kRecentKeys * args.kv.index_dim);
  card_.index_inputs(columns, args);
  if (planning_) return;
  const auto q = host_index_queries(host, args);
  const std::string where = fmt::format("{} tokens from {}", columns.count(), columns.runs[0].position);
  compare("index_inputs", where, fetch(args.q, static_cast<int64_t>(q.size())), q, rounding_tolerance());
  compare("index_inputs", where + " recent", host.card_slot_values(), host.slot_values(), 0);
  compare_pages("index_inputs", where, args.kv, host.card_pages(), host.pages());
}

void ParityOps::select_blocks(const Columns& columns, const SelectBlocks& args, const ops::BlockSelection& selection) {
  HostColumns host(*this, columns);
  if (!planning_) host.with_pages(args.kv);
  card_.select_blocks(columns, args, selection);
  if (planning_) return;
  const int64_t tokens = columns.count();
  const auto q = fetch(args.q, tokens * args.heads * args.kv.index_dim);
  std::vector<int32_t> blocks(static_cast<size_t>(tokens * selection.budget));
  std::vector<int32_t> counts(static_cast<size_t>(tokens));
  SelectBlocks twin = args;
  twin.q = q.data();
  twin.kv = host.kv(args.kv);
  host_.select_blocks(host.columns(), twin, {selection.budget, blocks.data(), counts.data()});
  const auto card_counts = fetch(selection.counts, tokens);
  const auto card_blocks = fetch(selection.blocks, tokens * selection.budget);
  const std::string where = fmt::format("{} tokens from {}", tokens, columns.runs[0].position);
  compare("select_blocks", where + " counts", to_floats(card_counts), to_floats(counts), 0);
  // Scores that are equal up to the order of sums may choose another block: one in a thousand may differ.
  int64_t different = 0;
  int64_t all = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if (counts[static_cast<size_t>(t)] == ops::BlockSelection::kEverything) continue;
    const auto begin = static_cast<size_t>(t * selection.budget);
    const auto end = begin + static_cast<size_t>(counts[static_cast<size_t>(t)]);
    all += counts[static_cast<size_t>(t)];
    for (size_t i = begin; i < end; ++i) {
      different += std::binary_search(card_blocks.begin() + static_cast<int64_t>(begin),
                                      card_blocks.begin() + static_cast<int64_t>(end), blocks[i])
                       ? 0
                       : 1;
    }
  }
  const auto share = static_cast<float>(all > 0 ? static_cast<double>(different) / static_cast<double>(all) : 0);
  compare("select_blocks", where, {1 + share}, {1}, 1e-3);
}

void ParityOps::attention(const Columns& columns, const Attention& args) {
  HostColumns host(*this, columns);
  if (!planning_) host.with_pages(args.kv);
  card_.attention(columns, args);
  if (planning_) return;
  const int64_t tokens = columns.count();
  const int64_t width = args.heads * args.kv.head_dim;
  const auto q = fetch(args.q, tokens * width);
  const auto q_gate = args.q_gate != nullptr ? fetch(args.q_gate, 2 * tokens * width) : std::vector<float>();
  std::vector<float> want(static_cast<size_t>(tokens * width));
  std::vector<int32_t> blocks;
  std::vector<int32_t> counts;
  ops::BlockSelection selection;
  Attention twin = args;
  if (args.selection != nullptr) {
    blocks = fetch(args.selection->blocks, tokens * args.selection->budget);
    counts = fetch(args.selection->counts, tokens);
    selection = {args.selection->budget, blocks.data(), counts.data()};
    twin.selection = &selection;
  }
  twin.q = q.data();
  if (args.q_gate != nullptr) twin.q_gate = q_gate.data();
  twin.kv = host.kv(args.kv);
  twin.out = want.data();
  host_.attention(host.columns(), twin);
  compare("attention", fmt::format("{} tokens from {}", tokens, columns.runs[0].position),
          fetch(args.out, tokens * width), want, rounding_tolerance());
}

void ParityOps::gated_attention(const Columns& columns, const GatedAttention& args) {
  // Many columns take the operations that this one is made of, and a choice among nearly equal scores is compared
  // before what follows from it.
  const AttentionInputs& inputs = args.inputs;
  const bool chooses = args.selection != nullptr && columns.reach / inputs.kv.ratio > args.selection->budget;
  if (columns.count() > ops::kMostFewColumns || chooses) return Ops::gated_attention(columns, args);
  HostColumns host(*this, columns);
  if (!planning_) {
    host.with_pages(inputs.kv);
    if (args.selection != nullptr) host.with_slot(args.index.recent, kRecentKeys * inputs.kv.index_dim);
  }
  card_.gated_attention(columns, args);
  if (planning_) return;
  const std::string where = fmt::format("{} tokens from {}", columns.count(), columns.runs[0].position);
  const int64_t tokens = columns.count();
  const auto q = host_queries(host, inputs);
  const auto card_q = fetch(inputs.q, static_cast<int64_t>(q.size()));
  compare("gated_attention", where + " queries", card_q, q, rounding_tolerance());
  if (args.selection != nullptr) {
    host_index_queries(host, args.index);  // nobody asks for the queries themselves
    compare("gated_attention", where + " recent", host.card_slot_values(), host.slot_values(), 0);
    const std::vector<float> everything(static_cast<size_t>(tokens), ops::BlockSelection::kEverything);
    compare("gated_attention", where + " counts", to_floats(fetch(args.selection->counts, tokens)), everything, 0);
  }
  compare_pages("gated_attention", where, inputs.kv, host.card_pages(), host.pages());
  // What follows, from the card's own queries and pages: theirs may lie on the other side of a rounding.
  HostColumns after(*this, columns);
  after.with_pages(inputs.kv);
  const auto q_gate = fetch(inputs.q_gate, 2 * static_cast<int64_t>(q.size()));
  std::vector<float> want(q.size());
  Attention attend = args.attention();
  attend.q = card_q.data();
  attend.q_gate = q_gate.data();
  attend.kv = after.kv(inputs.kv);
  attend.selection = nullptr;
  attend.out = want.data();
  host_.attention(after.columns(), attend);
  compare("gated_attention", where, fetch(args.out, static_cast<int64_t>(want.size())), want, rounding_tolerance());
}

}  // namespace tandem::selftest
