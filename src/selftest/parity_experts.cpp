// Operations of experts, and of n-gram memories.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "selftest/parity_parts.h"

namespace tandem::selftest {

void ParityOps::compare_routing(const std::string& op, const float* x, int64_t tokens, const Weight& w, int64_t top_k,
                                const int32_t* ids, const float* weights) {
  std::vector<int32_t> want_ids(static_cast<size_t>(tokens * top_k));
  std::vector<float> want(want_ids.size());
  host_.router(fetch(x, tokens * w.inputs).data(), tokens, kept_weight(w), top_k, want_ids.data(), want.data());
  const auto got_ids = fetch(ids, tokens * top_k);
  auto got = fetch(weights, tokens * top_k);
  // Experts whose weights are equal up to rounding may change places.
  for (size_t i = 0; i < want.size(); ++i) {
    if (got_ids[i] != want_ids[i] && std::fabs(got[i] - want[i]) > 1e-5F * want[i]) got[i] = NAN;
  }
  compare(op, fmt::format("{} by [{}, {}]", tokens, w.rows, w.inputs), got, want, kSums);
}

void ParityOps::router(const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids, float* weights) {
  card_.router(x, tokens, w, top_k, ids, weights);
  if (!planning_) compare_routing("router", x, tokens, w, top_k, ids, weights);
}

void ParityOps::router_and_gate(const float* x, int64_t tokens, const Weight& w, const Weight& gate, int64_t top_k,
                                int32_t* ids, float* weights, float* gates) {
  card_.router_and_gate(x, tokens, w, gate, top_k, ids, weights, gates);
  if (planning_) return;
  compare_routing("router_and_gate", x, tokens, w, top_k, ids, weights);
  std::vector<float> want(static_cast<size_t>(tokens));
  host_.linear(fetch(x, tokens * w.inputs).data(), tokens, kept_weight(gate), true, want.data());
  compare("router_and_gate", "gates", fetch(gates, tokens), want, kSums);
}

void ParityOps::experts(const Experts& args) {
  card_.experts(args);
  if (planning_) return;
  const int64_t count = args.tokens * args.table.hidden;
  const auto x = fetch(args.x, count);
  const auto ids = fetch(args.ids, args.tokens * args.top_k);
  const auto weights = fetch(args.weights, args.tokens * args.top_k);
  std::vector<float> want(static_cast<size_t>(2 * count));
  std::vector<int32_t> faults(static_cast<size_t>(args.tokens), -1);
  Experts twin = args;
  twin.x = x.data();
  twin.ids = ids.data();
  twin.weights = weights.data();
  twin.table.records = kept(args.table.records, args.table.experts * args.table.record.bytes);
  twin.table.scalars = kept_floats(args.table.scalars, args.table.experts * args.table.scalars_each);
  twin.lower = want.data();
  twin.upper = want.data() + count;
  twin.faults = faults.data();
  host_.experts(twin);
  const bool many = args.tokens > ops::kMostFewColumns;
  auto got = fetch(args.lower, count);
  const auto upper = fetch(args.upper, count);
  got.insert(got.end(), upper.begin(), upper.end());
  compare("experts", fmt::format("{} tokens, {} of {}", args.tokens, args.top_k, args.table.experts), got, want,
          !args.quantise_activations ? rounding_tolerance()
          : bf16_experts_ && many    ? kBf16
                                     : 0);
}

void ParityOps::combine_experts(const float* lower, const float* upper, const float* shared_lower,
                                const float* shared_upper, const float* gate, int64_t tokens, int64_t hidden,
                                float* out) {
  card_.combine_experts(lower, upper, shared_lower, shared_upper, gate, tokens, hidden, out);
  if (planning_) return;
  const int64_t count = tokens * hidden;
  std::vector<float> want(static_cast<size_t>(count));
  host_.combine_experts(fetch(lower, count).data(), fetch(upper, count).data(), fetch(shared_lower, count).data(),
                        fetch(shared_upper, count).data(), fetch(gate, tokens).data(), tokens, hidden, want.data());
  compare("combine_experts", fmt::format("[{}, {}]", tokens, hidden), fetch(out, count), want, kElementwise);
}

// Part by part, each against the processor; then at once against the parts.
void ParityOps::expert_mixture(const ExpertMixture& args) {
  Ops::expert_mixture(args);
  std::vector<float> want;
  if (!planning_) want = fetch(args.out, args.experts.tokens * args.experts.table.hidden);
  card_.expert_mixture(args);
  if (planning_) return;
  compare("expert_mixture", fmt::format("{} tokens", args.experts.tokens), fetch(args.out, std::ssize(want)), want,
          rounding_tolerance());
}

void ParityOps::ngram_memory(const Columns& columns, const ops::NgramWeights& w, const float* rows, int64_t streams,
                             int64_t hidden, float eps, int64_t history, float* state) {
  const int64_t tokens = columns.count();
  const int64_t width = streams * hidden;
  HostColumns host(*this, columns);
  std::vector<float> want;
  if (!planning_) {
    host.with_slot(history, (w.kernel - 1) * w.dilation * width);
    want = fetch(state, tokens * width);
  }
  card_.ngram_memory(columns, w, rows, streams, hidden, eps, history, state);
  if (planning_) return;
  ops::NgramWeights twin = w;
  twin.key = kept_weight(w.key);
  twin.value = kept_weight(w.value);
  twin.norm_key = kept_floats(w.norm_key, width);
  twin.norm_query = kept_floats(w.norm_query, width);
  twin.norm_conv = kept_floats(w.norm_conv, width);
  twin.conv = kept_floats(w.conv, w.kernel * width);
  host_.ngram_memory(host.columns(), twin, fetch(rows, tokens * w.key.inputs).data(), streams, hidden, eps, history,
                     want.data());
  const std::string where = fmt::format("[{}, {}, {}]", tokens, streams, hidden);
  compare("ngram_memory", where, fetch(state, tokens * width), want, 1e-3);
  compare("ngram_memory", where + " history", host.card_slot_values(), host.slot_values(), 1e-3);
}

}  // namespace tandem::selftest
