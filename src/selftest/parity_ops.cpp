#include "selftest/parity_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/units.h"
#include "numeric/int_lanes.h"
#include "numeric/lane_tiles.h"
#include "numeric/nvfp4_lanes.h"
#include "ops/weight_bytes.h"

namespace tandem::selftest {

using ops::Columns;
using ops::Weight;

namespace {

// FP32 sums in another order; values that are combined without sums.
constexpr double kSums = 2e-5;
constexpr double kElementwise = 1e-5;
// A value that lands on the other side of a rounding to BF16, inside an operation.
constexpr double kBf16 = 5e-3;

constexpr int64_t kPageTokens = 64;

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

std::vector<float> to_floats(const std::vector<int32_t>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

// The runs of a step with their state on the host: the parts of slots that an operation names, and the pages.
class ParityOps::HostColumns {
 public:
  HostColumns(ParityOps& ops, const Columns& columns)
      : ops_(ops), columns_(columns), runs_(columns.runs.begin(), columns.runs.end()) {
    for (ops::Run& run : runs_) run.slot = nullptr;
  }

  // Takes the floats at a byte offset of each slot along.
  HostColumns& with_slot(int64_t offset, int64_t floats) {
    offset_ = offset;
    floats_ = floats;
    slots_.resize(runs_.size());
    for (size_t r = 0; r < runs_.size(); ++r) {
      slots_[r] = ops_.fetch(device_floats(r), floats);
      // The operation adds the offset itself.
      runs_[r].slot = reinterpret_cast<std::byte*>(slots_[r].data()) - offset;
    }
    return *this;
  }

  // Takes the pages along that the runs see.
  HostColumns& with_pages(const ops::KvLayer& kv) {
    int32_t most = 0;
    tables_.resize(runs_.size());
    for (size_t r = 0; r < runs_.size(); ++r) {
      const int64_t pages = base::ceil_div(runs_[r].position + runs_[r].tokens, kPageTokens);
      tables_[r] = ops_.fetch(columns_.runs[r].block_table, pages);
      runs_[r].block_table = tables_[r].data();
      for (const int32_t page : tables_[r]) most = std::max(most, page);
    }
    page_bytes_ = kv.page_bytes;
    device_pages_ = kv.pages;
    pages_ = ops_.fetch(kv.pages, (most + 1) * kv.page_bytes);
    return *this;
  }

  Columns columns() const {
    Columns host = columns_;
    host.runs = runs_;
    host.table = runs_.data();
    return host;
  }
  ops::KvLayer kv(ops::KvLayer layer) {
    layer.pages = pages_.data();
    return layer;
  }

  // What the host's operation left in the slots and in one layer's part of the pages, and the card's counterpart.
  std::vector<float> slot_values() const {
    std::vector<float> all;
    for (const auto& slot : slots_) all.insert(all.end(), slot.begin(), slot.end());
    return all;
  }
  std::vector<float> card_slot_values() {
    std::vector<float> all;
    for (size_t r = 0; r < runs_.size(); ++r) {
      const auto slot = ops_.fetch(device_floats(r), floats_);
      all.insert(all.end(), slot.begin(), slot.end());
    }
    return all;
  }
  const std::vector<std::byte>& pages() const { return pages_; }
  std::vector<std::byte> card_pages() { return ops_.fetch(device_pages_, static_cast<int64_t>(pages_.size())); }
  const int32_t* table(size_t run) const { return tables_[run].data(); }

 private:
  const float* device_floats(size_t run) const {
    return reinterpret_cast<const float*>(columns_.runs[run].slot + offset_);
  }

  ParityOps& ops_;
  const Columns& columns_;
  std::vector<ops::Run> runs_;
  int64_t offset_ = 0;
  int64_t floats_ = 0;
  int64_t page_bytes_ = 0;
  const std::byte* device_pages_ = nullptr;
  std::vector<std::vector<float>> slots_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::byte> pages_;
};

void ParityOps::prepare(const std::function<void()>& step) {
  planning_ = true;
  card_.prepare(step);
  planning_ = false;
}

const std::byte* ParityOps::kept(const void* data, int64_t bytes) {
  if (data == nullptr || bytes == 0) return nullptr;
  std::vector<std::byte>& copy = kept_[data];
  if (static_cast<int64_t>(copy.size()) < bytes) copy = fetch(static_cast<const std::byte*>(data), bytes);
  return copy.data();
}

namespace {

// From the places of lanes' order (numeric/lane_tiles.h) to rows; what a row has `count` of has kWords words.
template <typename T, int kWords>
void order_by_rows(T* words, int64_t rows, int64_t count) {
  const std::vector<T> tiled(words, words + rows * count * kWords);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < count; ++i, words += kWords) {
      std::copy_n(tiled.data() + numeric::lane_tile_place(row, i, count) * kWords, kWords, words);
    }
  }
}

// Units in lanes' order, in place.
template <int kWords>
void order_by_inputs(uint32_t* words, int64_t rows, int64_t units,
                     void (*from_lane_order)(const uint32_t*, uint32_t*)) {
  order_by_rows<uint32_t, kWords>(words, rows, units);
  for (int64_t i = 0; i < rows * units; ++i) {
    std::array<uint32_t, kWords> unit;
    std::copy_n(words, unit.size(), unit.begin());
    from_lane_order(unit.data(), words);
    words += unit.size();
  }
}

}  // namespace

Weight ParityOps::kept_weight(const Weight& w) {
  Weight host = w;
  const bool fresh = !kept_.contains(w.data);
  host.data = kept(w.data, ops::data_bytes(w));
  host.scales = kept(w.scales, ops::scale_bytes(w));
  host.lane_order = false;
  if (w.lane_order && fresh) {
    auto* words = reinterpret_cast<uint32_t*>(kept_.at(w.data).data());
    auto* scales = kept_.at(w.scales).data();
    const int64_t units = w.inputs / numeric::kLaneUnitInputs;
    if (w.format == ops::WeightFormat::kNvfp4) {
      order_by_inputs<numeric::kLaneUnitWords>(words, w.rows, units, numeric::from_lane_order);
      order_by_rows<uint64_t, 1>(reinterpret_cast<uint64_t*>(scales), w.rows, units);
      return host;
    }
    if (w.format == ops::WeightFormat::kInt4) {
      order_by_inputs<numeric::kIntLaneWords<4>>(words, w.rows, units, numeric::int_from_lane_order<4>);
    } else {
      order_by_inputs<numeric::kIntLaneWords<3>>(words, w.rows, units, numeric::int_from_lane_order<3>);
    }
    if (w.scale_type == ops::ScaleType::kF32) {
      order_by_rows<uint32_t, 1>(reinterpret_cast<uint32_t*>(scales), w.rows, w.inputs / w.group);
    } else {
      order_by_rows<uint16_t, 1>(reinterpret_cast<uint16_t*>(scales), w.rows, w.inputs / w.group);
    }
  }
  return host;
}

ops::HyperWeights ParityOps::kept_hyper(const ops::HyperWeights& w, int64_t width) {
  ops::HyperWeights host = w;
  host.norm = kept_floats(w.norm, width);
  host.down = kept_weight(w.down);
  host.up = kept_weight(w.up);
  host.inject = kept_weight(w.inject);
  return host;
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

void ParityOps::greedy(const Greedy& args) {
  card_.greedy(args);
  if (planning_) return;
  const auto logits = fetch(args.logits, args.rows * args.vocab);
  const auto allowed = args.allowed == nullptr ? std::vector<uint32_t>()
                                               : fetch(args.allowed, args.rows * base::ceil_div(args.tokens, 32));
  std::vector<int32_t> want(static_cast<size_t>(args.rows));
  Greedy host = args;
  host.logits = logits.data();
  host.allowed = args.allowed == nullptr ? nullptr : allowed.data();
  host.ids = want.data();
  host_.greedy(host);
  compare("greedy", fmt::format("[{}, {}]", args.rows, args.tokens), to_floats({args.ids, args.ids + args.rows}),
          to_floats(want), 0);
}

void ParityOps::top_logits(const TopLogits& args) {
  card_.top_logits(args);
  if (planning_) return;
  const auto logits = fetch(args.logits, args.rows * args.vocab);
  const auto allowed = args.allowed == nullptr ? std::vector<uint32_t>()
                                               : fetch(args.allowed, args.rows * base::ceil_div(args.tokens, 32));
  std::vector<ops::TokenLogit> best(static_cast<size_t>(args.rows * kTopLogits));
  std::vector<int32_t> counts(static_cast<size_t>(args.rows));
  TopLogits host = args;
  host.logits = logits.data();
  host.allowed = args.allowed == nullptr ? nullptr : allowed.data();
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
