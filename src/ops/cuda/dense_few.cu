// Products of at most eight columns with BF16 inputs: bound by reading the weights once.
//
// Work is cut three ways. A cluster of `splits` blocks has the same rows, each block a part of the inputs; a block's
// warps have two units of 128 inputs each (several times over where the inputs are very many); a warp goes over the
// block's rows in tiles of 16. So the inputs of all columns, rounded to BF16, stay in a warp's registers in the order
// of the tensor cores' operand, and what a warp does again and again is: waiting for codes in shared memory; decoding;
// 16 products of 16 rows x 8 columns x 16 inputs. Warps' sums meet in shared memory, blocks' sums through the cluster's
// (dense_few_sums.cuh); both are added in order of the inputs. The kernels are in dense_few_rows.cu and
// dense_few_tiles.cu.
//
// Cost: bytes at the card's rate of reading, where instructions do not bound it: a warp has 200 to 320 for a tile in
// lanes' order (the most of eight columns of NVFP4), half of which decode its 128 weights a lane, and 500 to 600 for
// one of rows; the first slots are fetched while the kernels before end.
//
// The cuts follow from rows and inputs alone, and missing columns are zeros: a column's bits do not depend on the
// number of columns.
#include <algorithm>
#include <bit>

#include "ops/cuda/dense_decode.cuh"
#include "ops/cuda/dense_few_launch.cuh"
#include "ops/cuda/dense_paths.h"

namespace tandem::ops::cuda::dense {

namespace {

// From the shape alone; how many tiles a cluster takes comes later, and no sum depends on it.
Cut cut_of(const Weight& w) {
  constexpr int kMostSplits = 8;  // blocks of a cluster on every card
  constexpr int kBlockUnits = kMostWarps * kWarpUnits;
  constexpr int kEnoughBlocks = 264;
  Cut cut;
  cut.units = static_cast<int>(w.inputs / kUnit);
  cut.lower_units = ceil_div(cut.units, 2);
  cut.tiles = ceil_div(w.rows, kTileRows);
  while (cut.splits < kMostSplits) {
    const int each = ceil_div(cut.lower_units, cut.splits / 2);
    const bool too_few = static_cast<int64_t>(cut.tiles) * cut.splits < kEnoughBlocks && each > kWarpUnits;
    if (each <= kBlockUnits && !too_few) break;
    cut.splits *= 2;
  }
  cut.split_bits = std::countr_zero(static_cast<unsigned>(cut.splits));
  cut.units_each = ceil_div(cut.lower_units, cut.splits / 2);
  cut.passes = ceil_div(cut.units_each, kBlockUnits);
  cut.warps = ceil_div(ceil_div(cut.units_each, cut.passes), kWarpUnits);
  return cut;
}

int log2_of(int64_t power) {
  int log = 0;
  while (power > 1) {
    power /= 2;
    ++log;
  }
  return log;
}

// Where the rows of codes and scales lie.
void place_rows(Arguments& p) {
  const Weight& w = p.product.w;
  const int scale = w.scale_type == ScaleType::kF32 ? 4 : 2;
  const auto bytes = [](int64_t count) { return static_cast<uint32_t>(count); };
  switch (w.format) {
    case WeightFormat::kBF16:
      p.row_bytes = bytes(2 * w.inputs);
      break;
    case WeightFormat::kFp8Block:
      p.row_bytes = bytes(w.inputs);
      p.row_scales = bytes(w.inputs / kUnit * scale);
      break;
    case WeightFormat::kNvfp4:
      p.row_bytes = bytes(w.inputs / 2);
      p.row_scales = bytes(w.inputs / 16);
      break;
    case WeightFormat::kInt3:
    case WeightFormat::kInt4:
      p.row_bytes = bytes(w.format == WeightFormat::kInt3 ? w.inputs / 8 * 3 : w.inputs / 2);
      p.row_scales = bytes(w.inputs / w.group * scale);
      p.group_shift = log2_of(w.group >= kUnit ? w.group / kUnit : w.group / 32);
      break;
    case WeightFormat::kInt8:
      p.row_bytes = bytes(w.inputs);
      p.row_scales = bytes(w.inputs / w.group * scale);
      p.group_shift = log2_of(w.group / 64);
      break;
    default:
      p.row_bytes = bytes(w.inputs);
      break;
  }
}

// From a tile to the next: 16 rows on, or to the other matrix of a pair and back.
void place_steps(Arguments& p) {
  const Weight& w = p.product.w;
  const int64_t codes = int64_t{kTileRows} * p.row_bytes;
  const int64_t scales = w.format == WeightFormat::kFp8Block ? 0 : int64_t{kTileRows} * p.row_scales;
  const auto between = [](const void* from, const void* to) {
    return from == nullptr ? 0 : static_cast<const uint8_t*>(to) - static_cast<const uint8_t*>(from);
  };
  const int64_t to_codes = p.product.paired ? between(w.data, p.product.up.data) : codes;
  const int64_t to_scales = p.product.paired ? between(w.scales, p.product.up.scales) : scales;
  p.code_steps[0] = to_codes;
  p.code_steps[1] = p.product.paired ? codes - to_codes : codes;
  p.scale_steps[0] = to_scales;
  p.scale_steps[1] = p.product.paired ? scales - to_scales : scales;
}

// Groups are counted by shifts.
bool group_serves(int64_t group, int64_t least) {
  return group >= least && (group & (group - 1)) == 0;
}

}  // namespace

bool few_columns_serve(const Product& p) {
  const Weight& w = p.w;
  if (w.inputs % kUnit != 0 || w.inputs > int64_t{kUnit} << 24 || w.rows > int64_t{1} << 30) return false;
  if ((p.upper != nullptr || p.add_halves) && w.inputs % (2 * kUnit) != 0) return false;
  if (!aligned_to(w.data, 16) || !aligned_to(p.x, 16)) return false;
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
      return false;
    case WeightFormat::kNvfp4:
      return w.lane_order && aligned_to(w.scales, 16);
    case WeightFormat::kFp8Block:
      return aligned_to(w.scales, 4);
    case WeightFormat::kInt3:
    case WeightFormat::kInt4:
      return w.lane_order && aligned_to(w.scales, 16) && group_serves(w.group, 32);
    case WeightFormat::kInt8:
      return aligned_to(w.scales, 4) && group_serves(w.group, 64);
    default:
      return true;
  }
}

bool few_columns_share(std::span<const Product> products) {
  if (products.size() > kMostProducts) return false;
  const Weight& first = products[0].w;
  return std::all_of(products.begin(), products.end(), [&](const Product& product) {
    const Weight& w = product.w;
    return few_columns_serve(product) && w.format == first.format && w.inputs == first.inputs &&
           w.group == first.group && w.scale_type == first.scale_type;
  });
}

void few_columns_linear(const Context& context, std::span<const Product> products) {
  if (context.plans()) return;
  Group group;
  group.count = static_cast<int>(products.size());
  // All are cut as the largest is.
  const auto largest = std::max_element(products.begin(), products.end(),
                                        [](const Product& a, const Product& b) { return a.w.rows < b.w.rows; });
  const Cut cut = cut_of(largest->w);
  for (size_t i = 0; i < products.size(); ++i) {
    Arguments& p = group.products[i];
    p.product = products[i];
    p.cut = cut;
    p.cut.tiles = ceil_div(p.product.w.rows, kTileRows) * (p.product.paired ? 2 : 1);
    place_rows(p);
    place_steps(p);
  }
  return products[0].w.lane_order ? launch_tiles(context, group) : launch_rows(context, group);
}

}  // namespace tandem::ops::cuda::dense
