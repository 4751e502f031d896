#include "selftest/parity_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <limits>

#include "base/units.h"
#include "selftest/parity_parts.h"

namespace tandem::selftest {

namespace {

double relative_norm(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  if (difference == 0) return 0;  // also where everything is zero
  const double relative = std::sqrt(difference / std::max(norm, 1e-60));
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

}  // namespace

void ParityOps::prepare(const std::function<void()>& step) {
  planning_ = true;
  card_.prepare(step);
  planning_ = false;
}

void ParityOps::compare(const std::string& op, const std::string& where, const std::vector<float>& got,
                        const std::vector<float>& want, double tolerance) {
  OpReport& report = reports_[op];
  ++report.calls;
  const double error = relative_norm(got, want);
  // The worst call is the one nearest to its own tolerance.
  if (report.calls > 1 && error * report.tolerance <= report.worst * tolerance) return;
  report.worst = error;
  report.tolerance = tolerance;
  report.where = where;
}

void ParityOps::compare_pages(const std::string& op, const std::string& where, const ops::KvLayer& kv,
                              const std::vector<std::byte>& got, const std::vector<std::byte>& want) {
  // Codes and BF16 numbers may land on the other side of a rounding: the share of bytes that differ is told.
  if (kv.type != ops::KvType::kF32) {
    int64_t different = 0;
    for (size_t i = 0; i < want.size(); ++i) different += got[i] != want[i] ? 1 : 0;
    const double share = static_cast<double>(different) / static_cast<double>(std::max<size_t>(want.size(), 1));
    compare(op, where + " pages", {static_cast<float>(1 + share)}, {1}, kBf16);
    return;
  }
  const auto floats = [](const std::vector<std::byte>& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    for (float& value : values) value = std::isfinite(value) ? value : 0;  // what no token was written to yet
    return values;
  };
  compare(op, where + " pages", floats(got), floats(want), kSums);
}

double ParityOps::rounding_tolerance() const {
  return round_inputs_ ? kBf16 : kSums;
}

double ParityOps::product_tolerance(const Weight& w, int64_t tokens, bool exact_inputs) const {
  // Wide products may round a decoded weight to BF16 where its scale makes it inexact.
  const bool rounded = round_inputs_ && !exact_inputs && tokens > ops::kMostFewColumns;
  return rounded && w.format != ops::WeightFormat::kBF16 ? kBf16 : kSums;
}

void ParityOps::embed(const Weight& table, const int32_t* ids, int64_t tokens, int64_t copies, float* out) {
  card_.embed(table, ids, tokens, copies, out);
  if (planning_) return;
  std::vector<float> want(static_cast<size_t>(tokens * copies * table.inputs));
  host_.embed(kept_weight(table), fetch(ids, tokens).data(), tokens, copies, want.data());
  compare("embed", fmt::format("{} tokens", tokens), fetch(out, tokens * copies * table.inputs), want, 0);
}

void ParityOps::rms_norm(const float* x, int64_t tokens, int64_t groups, int64_t width, const float* weight, float eps,
                         float* out) {
  const int64_t count = tokens * groups * width;
  const auto inputs = planning_ ? std::vector<float>() : fetch(x, count);
  card_.rms_norm(x, tokens, groups, width, weight, eps, out);
  if (planning_) return;
  std::vector<float> want(static_cast<size_t>(count));
  host_.rms_norm(inputs.data(), tokens, groups, width, kept_floats(weight, groups * width), eps, want.data());
  compare("rms_norm", fmt::format("[{}, {}, {}]", tokens, groups, width), fetch(out, count), want, kElementwise);
}

void ParityOps::linear(const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y) {
  card_.linear(x, tokens, w, exact_inputs, y);
  if (planning_) return;
  std::vector<float> want(static_cast<size_t>(tokens * w.rows));
  host_.linear(fetch(x, tokens * w.inputs).data(), tokens, kept_weight(w), exact_inputs, want.data());
  compare("linear", fmt::format("{} by [{}, {}]", tokens, w.rows, w.inputs), fetch(y, tokens * w.rows), want,
          product_tolerance(w, tokens, exact_inputs));
}

void ParityOps::linear_group(const float* x, int64_t tokens, std::span<const Product> products, bool exact_inputs) {
  card_.linear_group(x, tokens, products, exact_inputs);
  if (planning_) return;
  const auto inputs = fetch(x, tokens * products[0].w.inputs);
  for (const Product& product : products) {
    const Weight& w = product.w;
    std::vector<float> want(static_cast<size_t>(tokens * w.rows));
    host_.linear(inputs.data(), tokens, kept_weight(w), exact_inputs, want.data());
    compare("linear_group", fmt::format("{} by [{}, {}]", tokens, w.rows, w.inputs), fetch(product.y, tokens * w.rows),
            want, product_tolerance(w, tokens, exact_inputs));
  }
}

void ParityOps::linear_halves(const float* x, int64_t tokens, const Weight& w, float* lower, float* upper) {
  card_.linear_halves(x, tokens, w, lower, upper);
  if (planning_) return;
  const int64_t count = tokens * w.rows;
  std::vector<float> want(static_cast<size_t>(2 * count));
  host_.linear_halves(fetch(x, tokens * w.inputs).data(), tokens, kept_weight(w), want.data(), want.data() + count);
  auto got = fetch(lower, count);
  const auto other = fetch(upper, count);
  got.insert(got.end(), other.begin(), other.end());
  compare("linear_halves", fmt::format("{} by [{}, {}]", tokens, w.rows, w.inputs), got, want,
          product_tolerance(w, tokens, false));
}

void ParityOps::linear_sum(const float* x, int64_t tokens, const Weight& w, float* y, float* upper) {
  card_.linear_sum(x, tokens, w, y, upper);
  if (planning_) return;
  std::vector<float> want(static_cast<size_t>(tokens * w.rows));
  std::vector<float> scratch(want.size());
  host_.linear_sum(fetch(x, tokens * w.inputs).data(), tokens, kept_weight(w), want.data(), scratch.data());
  compare("linear_sum", fmt::format("{} by [{}, {}]", tokens, w.rows, w.inputs), fetch(y, tokens * w.rows), want,
          product_tolerance(w, tokens, false));
}

void ParityOps::swiglu(const float* x, int64_t tokens, const Weight& gate, const Weight& up, float* y, float* other) {
  card_.swiglu(x, tokens, gate, up, y, other);
  if (planning_) return;
  std::vector<float> want(static_cast<size_t>(tokens * gate.rows));
  std::vector<float> scratch(want.size());
  host_.swiglu(fetch(x, tokens * gate.inputs).data(), tokens, kept_weight(gate), kept_weight(up), want.data(),
               scratch.data());
  compare("swiglu", fmt::format("{} by [{}, {}]", tokens, gate.rows, gate.inputs), fetch(y, tokens * gate.rows), want,
          4 * product_tolerance(gate, tokens, false));
}

void ParityOps::add(float* y, const float* x, int64_t count) {
  auto want = planning_ ? std::vector<float>() : fetch(y, count);
  card_.add(y, x, count);
  if (planning_) return;
  host_.add(want.data(), fetch(x, count).data(), count);
  compare("add", fmt::format("{}", count), fetch(y, count), want, 0);
}

void ParityOps::add_rms_norm(float* y, const float* x, int64_t tokens, int64_t width, const float* weight, float eps,
                             float* out) {
  const int64_t count = tokens * width;
  auto want_sum = planning_ ? std::vector<float>() : fetch(y, count);
  card_.add_rms_norm(y, x, tokens, width, weight, eps, out);
  if (planning_) return;
  std::vector<float> want(static_cast<size_t>(count));
  host_.add_rms_norm(want_sum.data(), fetch(x, count).data(), tokens, width, kept_floats(weight, width), eps,
                     want.data());
  const std::string where = fmt::format("[{}, {}]", tokens, width);
  compare("add_rms_norm", where + " sum", fetch(y, count), want_sum, 0);
  compare("add_rms_norm", where, fetch(out, count), want, kElementwise);
}

void ParityOps::add_to_streams(float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden) {
  auto want = planning_ ? std::vector<float>() : fetch(y, tokens * streams * hidden);
  card_.add_to_streams(y, x, tokens, streams, hidden);
  if (planning_) return;
  host_.add_to_streams(want.data(), fetch(x, tokens * hidden).data(), tokens, streams, hidden);
  compare("add_to_streams", fmt::format("[{}, {}, {}]", tokens, streams, hidden), fetch(y, tokens * streams * hidden),
          want, 0);
}

void ParityOps::concatenate(const float* left, const float* right, int64_t tokens, int64_t width, float* out) {
  card_.concatenate(left, right, tokens, width, out);
  if (planning_) return;
  std::vector<float> want(static_cast<size_t>(2 * tokens * width));
  host_.concatenate(fetch(left, tokens * width).data(), fetch(right, tokens * width).data(), tokens, width,
                    want.data());
  compare("concatenate", fmt::format("[{}, 2 x {}]", tokens, width), fetch(out, 2 * tokens * width), want, 0);
}

void ParityOps::silu_multiply(const float* gate, const float* up, int64_t count, float* y) {
  const auto gates = planning_ ? std::vector<float>() : fetch(gate, count);
  card_.silu_multiply(gate, up, count, y);
  if (planning_) return;
  std::vector<float> want(static_cast<size_t>(count));
  host_.silu_multiply(gates.data(), fetch(up, count).data(), count, want.data());
  compare("silu_multiply", fmt::format("{}", count), fetch(y, count), want, kElementwise);
}

void ParityOps::hyper_mix(const ops::HyperWeights& w, const float* state, int64_t tokens, int64_t streams,
                          int64_t hidden, float eps, float* x, float* inject) {
  card_.hyper_mix(w, state, tokens, streams, hidden, eps, x, inject);
  if (planning_) return;
  const int64_t width = streams * hidden;
  std::vector<float> want(static_cast<size_t>(tokens * hidden));
  std::vector<float> want_inject(static_cast<size_t>(inject != nullptr ? tokens * streams : 0));
  host_.hyper_mix(kept_hyper(w, width), fetch(state, tokens * width).data(), tokens, streams, hidden, eps, want.data(),
                  inject != nullptr ? want_inject.data() : nullptr);
  const std::string where = fmt::format("[{}, {}, {}]", tokens, streams, hidden);
  compare("hyper_mix", where, fetch(x, tokens * hidden), want, rounding_tolerance());
  if (inject != nullptr) compare("hyper_mix", where, fetch(inject, tokens * streams), want_inject, kSums);
}

void ParityOps::hyper_inject(float* state, const float* y, const float* inject, int64_t tokens, int64_t streams,
                             int64_t hidden) {
  const int64_t count = tokens * streams * hidden;
  auto want = planning_ ? std::vector<float>() : fetch(state, count);
  card_.hyper_inject(state, y, inject, tokens, streams, hidden);
  if (planning_) return;
  host_.hyper_inject(want.data(), fetch(y, tokens * hidden).data(), fetch(inject, tokens * streams).data(), tokens,
                     streams, hidden);
  compare("hyper_inject", fmt::format("[{}, {}, {}]", tokens, streams, hidden), fetch(state, count), want,
          kElementwise);
}

void ParityOps::hyper_inject_mix(float* state, const float* y, const float* inject, const ops::HyperWeights& w,
                                 int64_t tokens, int64_t streams, int64_t hidden, float eps, float* x,
                                 float* next_inject) {
  const int64_t width = streams * hidden;
  auto want_state = planning_ ? std::vector<float>() : fetch(state, tokens * width);
  card_.hyper_inject_mix(state, y, inject, w, tokens, streams, hidden, eps, x, next_inject);
  if (planning_) return;
  std::vector<float> want(static_cast<size_t>(tokens * hidden));
  std::vector<float> want_inject(static_cast<size_t>(tokens * streams));
  host_.hyper_inject_mix(want_state.data(), fetch(y, tokens * hidden).data(), fetch(inject, tokens * streams).data(),
                         kept_hyper(w, width), tokens, streams, hidden, eps, want.data(), want_inject.data());
  const std::string where = fmt::format("[{}, {}, {}]", tokens, streams, hidden);
  compare("hyper_inject_mix", where + " state", fetch(state, tokens * width), want_state, kElementwise);
  compare("hyper_inject_mix", where, fetch(x, tokens * hidden), want, rounding_tolerance());
  compare("hyper_inject_mix", where + " factors", fetch(next_inject, tokens * streams), want_inject, kSums);
}

// What a choice reads: the logits, and the sets of tokens that rows may become.
class ParityOps::HostLogits {
 public:
  template <typename Choice>
  HostLogits(ParityOps& ops, const Choice& args) : logits_(ops.fetch(args.logits, args.rows * args.vocab)) {
    if (args.allowed != nullptr) allowed_ = ops.fetch(args.allowed, args.rows * base::ceil_div(args.tokens, 32));
  }
  template <typename Choice>
  Choice instead_of(Choice args) const {
    args.logits = logits_.data();
    if (args.allowed != nullptr) args.allowed = allowed_.data();
    return args;
  }

 private:
  std::vector<float> logits_;
  std::vector<uint32_t> allowed_;
};

void ParityOps::greedy(const Greedy& args) {
  card_.greedy(args);
  if (planning_) return;
  const HostLogits logits(*this, args);
  std::vector<int32_t> want(static_cast<size_t>(args.rows));
  Greedy host = logits.instead_of(args);
  host.ids = want.data();
  host_.greedy(host);
  compare("greedy", fmt::format("[{}, {}]", args.rows, args.tokens), to_floats({args.ids, args.ids + args.rows}),
          to_floats(want), 0);
}

void ParityOps::top_logits(const TopLogits& args) {
  card_.top_logits(args);
  if (planning_) return;
  const HostLogits logits(*this, args);
  std::vector<ops::TokenLogit> best(static_cast<size_t>(args.rows * kTopLogits));
  std::vector<int32_t> counts(static_cast<size_t>(args.rows));
  TopLogits host = logits.instead_of(args);
  host.best = best.data();
  host.counts = counts.data();
  host_.top_logits(host);
  std::vector<float> got;
  std::vector<float> want;
  for (int64_t r = 0; r < args.rows; ++r) {
    got.push_back(static_cast<float>(args.counts[r]));
    want.push_back(static_cast<float>(host.counts[r]));
    for (int64_t i = r * kTopLogits; i < r * kTopLogits + std::min(args.counts[r], host.counts[r]); ++i) {
      got.insert(got.end(), {static_cast<float>(args.best[i].id), args.best[i].logit});
      want.insert(want.end(), {static_cast<float>(host.best[i].id), host.best[i].logit});
    }
  }
  compare("top_logits", fmt::format("[{}, {}]", args.rows, args.tokens), got, want, 0);
}

}  // namespace tandem::selftest
