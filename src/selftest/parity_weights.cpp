// Copies of weights for the host, in the order that it knows.
#include <algorithm>
#include <array>

#include "numeric/int_lanes.h"
#include "numeric/lane_tiles.h"
#include "numeric/nvfp4_lanes.h"
#include "ops/weight_bytes.h"
#include "selftest/parity_parts.h"

namespace tandem::selftest {

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

}  // namespace tandem::selftest
