// How the kernels for products of few columns are launched: as many clusters as a card holds at once, with equal
// shares.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "ops/cuda/dense_few_shape.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda::dense {

// Weights whose rows lie one behind the other, and those in lanes' order. The products are cut, and where their rows
// lie is told.
void launch_rows(const Context& context, const Group& group);
void launch_tiles(const Context& context, const Group& group);

inline int ceil_div(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

// All clusters' blocks should be on the card at once, else in as few waves as do, with as equally many tiles as can be.
// A cluster's tiles are of one product, and a pair's rows stay together. Returns how many clusters there are.
inline int share_tiles(Group& group, int clusters, int most) {
  const int tile = group.products[0].product.paired ? 2 : 1;
  most /= tile;
  int tiles = 0;
  for (int i = 0; i < group.count; ++i) tiles += group.products[i].cut.tiles / tile;
  clusters *= ceil_div(tiles, int64_t{clusters} * most);
  int taken[kMostProducts] = {};
  const auto take = [&](int each) {
    int sum = 0;
    for (int i = 0; i < group.count; ++i) sum += taken[i] = ceil_div(group.products[i].cut.tiles / tile, each);
    return sum;
  };
  int each = ceil_div(tiles, clusters);
  while (take(each) > clusters && each < most) ++each;
  // What is left goes to the product of the most rows, so that no multiprocessor has fewer clusters than others.
  const int left = std::max(0, clusters - take(each));
  const auto* widest =
      std::max_element(group.products, group.products + group.count,
                       [](const Arguments& a, const Arguments& b) { return a.cut.tiles < b.cut.tiles; });
  taken[widest - group.products] += left;
  int first = 0;
  int largest = 0;
  for (int i = 0; i < group.count; ++i) {
    Arguments& p = group.products[i];
    const int own = p.cut.tiles / tile;
    const int count = std::min(own, taken[i]);
    p.first_cluster = first;
    if (count == 0) continue;
    p.cut.least = own / count;
    p.cut.larger = own % count;
    first += count;
    largest = std::max(largest, ceil_div(own, count) * tile);
  }
  for (int i = 0; i < group.count; ++i) group.products[i].cut.tiles_each = largest;
  return first;
}

// How many clusters a card holds at once, of each kernel and size: asked once.
inline int resident_clusters(const void* kernel, const cudaLaunchConfig_t& config) {
  static std::mutex mutex;
  static std::map<std::array<uint64_t, 5>, int> known;
  const std::scoped_lock lock(mutex);
  int device = 0;
  TANDEM_CUDA_CHECK(cudaGetDevice(&device));
  const auto [entry, fresh] =
      known.try_emplace({reinterpret_cast<uint64_t>(kernel), config.blockDim.x, config.attrs->val.clusterDim.x,
                         config.dynamicSmemBytes, static_cast<uint64_t>(device)},
                        0);
  if (fresh) TANDEM_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&entry->second, kernel, &config));
  return entry->second < 1 ? 1 : entry->second;
}

// Bytes of the sums that a block gets and keeps, where clusters have so many tiles.
inline int sums_bytes(Cut cut, int tiles, int64_t tokens) {
  cut.tiles_each = tiles;
  const int kept = arrived_tiles(cut) + (cut.passes > 1 ? tiles : 0);
  return kept * kTileRows * static_cast<int>(sizeof(float)) << column_bits(tokens);
}

// Blocks of a multiprocessor as registers allow: asked for once.
inline int blocks_by_registers(const void* kernel, int threads) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> known;
  const std::scoped_lock lock(mutex);
  const auto [entry, fresh] = known.try_emplace({kernel, threads}, 0);
  if (fresh) TANDEM_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&entry->second, kernel, threads, 0));
  return entry->second;
}

// Bytes of shared memory of a block so that so many fit on a multiprocessor, where two do on every card: the most, and
// the least where registers would let more fit. Clusters are placed where there is room, and their shares are equal:
// they must not be more on one multiprocessor than on another. Elsewhere blocks take no more than they need, and leave
// room to the kernels beside them (delta_few.cu).
struct SharedBounds {
  int blocks, least, most;
  explicit SharedBounds(int count) : blocks(count) {
    constexpr int kEveryCards = 99 * 1024;
    constexpr int kReserved = 1024;  // of each block
    int device = 0;
    int bytes = 0;
    TANDEM_CUDA_CHECK(cudaGetDevice(&device));
    TANDEM_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    most = std::max(kEveryCards * 2 / std::max(2, blocks), bytes / blocks - kReserved);
    least = std::min(most, bytes / (blocks + 1) - kReserved + 128);
  }
};

// A block has `warps` warps and `fixed` bytes of shared memory beside its sums.
inline void launch_few(const Context& context, void (*kernel)(Group), Group group, int warps, int fixed,
                       const SharedBounds& bounds) {
  const Cut& cut = group.products[0].cut;  // products of a launch differ in their tiles alone
  const int64_t tokens = group.products[0].product.tokens;
  const bool more_fit = blocks_by_registers(reinterpret_cast<const void*>(kernel), 32 * warps) > bounds.blocks;
  const auto shared = [&](int tiles) {
    return std::max(more_fit ? bounds.least : 0, fixed + sums_bytes(cut, tiles, tokens));
  };
  int most_tiles = kMostTiles;
  while (most_tiles > 2 && shared(most_tiles) > bounds.most) most_tiles -= 2;
  // Two tiles' at least, however many blocks would fit.
  allow_shared(kernel, std::max(bounds.most, shared(most_tiles)));
  prefer_shared(kernel, cudaSharedmemCarveoutMaxShared);  // room for the next kernel's blocks beside these (follow.cuh)
  const dim3 cluster(static_cast<unsigned>(cut.splits));
  const dim3 block(static_cast<unsigned>(32 * warps));
  cudaLaunchAttribute clusters_of = {};
  clusters_of.id = cudaLaunchAttributeClusterDimension;
  clusters_of.val.clusterDim = {cluster.x, 1, 1};
  cudaLaunchConfig_t one = {};
  one.gridDim = cluster;
  one.blockDim = block;
  one.dynamicSmemBytes = static_cast<size_t>(shared(std::min(most_tiles, kUsualTiles)));
  one.attrs = &clusters_of;
  one.numAttrs = 1;
  const int clusters = share_tiles(group, resident_clusters(reinterpret_cast<const void*>(kernel), one), most_tiles);
  const dim3 grid(static_cast<unsigned>(clusters * cut.splits));
  launch_following_clusters(context, cluster, kernel, grid, block, static_cast<size_t>(shared(cut.tiles_each)), group);
}

}  // namespace tandem::ops::cuda::dense
