// Gated DeltaNet between its projections, for few columns, in one launch: the gates' products, the convolution, the
// recurrence and the gated norm.
//
// A block has half the columns of one value head's matrix M, for one run, in shared memory: 128 rows of 64 floats, 16
// rows for each half of a warp. The recurrence is that of delta_steps.cu:
//   recalled = decay M^T k,  delta = beta (v - recalled),  out = decay M^T q + (k . q) delta,  M = decay M + k delta^T.
// The blocks of a key head's value heads are a cluster. Halves of a head send each other the squares that the norm
// wants; and each block convolves the queries and keys again, whose history one of them moves on when all have it.
//
// Blocks are small, 128 threads with at most 72 registers, so that they find room beside those of the projections as
// soon as all of these have begun, and six to a multiprocessor, so that eight runs' are there at once. Long before the
// projections have ended they have M and the gates, for slots, run tables and weights are written by nothing else
// within a step, which do not overlap (follow.cuh), and the gates' inputs were there before the projections began
// (delta_net.h). What remains is the chain from the projections to the output, bound by latencies.
//
// Sums are over a column alone, in an order that the shape decides.
#include "ops/cuda/delta_few_steps.cuh"
#include "ops/cuda/delta_net.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

using namespace delta;

constexpr int64_t kMostCluster = 2 * kMostHeads;  // eight on every card
constexpr int kMostResident = 7;                  // blocks of a multiprocessor that registers are there for

// Two rounds of the cluster's barrier: all blocks run; all have their gates' sums and can be sent to, and have read
// their history.
__device__ inline void arrive_running() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void arrive_prepared() {
  asm volatile("barrier.cluster.arrive;" ::: "memory");
}
__device__ inline void await_cluster() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}

// The block's part of M.
__device__ inline void fetch_matrix(const Place& at, const float* matrix, Block& block) {
  constexpr int kLanes = kHalf / 4;
  const int own = at.thread % kLanes * 4;
#pragma unroll
  for (int row = at.thread / kLanes; row < kDim; row += kThreads / kLanes) {
    copy_16(shared_address(block.rows[row] + own), matrix + row * kDim + own);
  }
  commit_copies();
}

// Blocks (halves of the value heads of a key head, key heads, runs), the first of which are a cluster.
__global__ void __launch_bounds__(kThreads, kMostResident) delta_few_kernel(const Few args) {
  let_next_start();
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Mailbox mailbox;
  Block& block = *reinterpret_cast<Block*>(memory);
  auto* columns = reinterpret_cast<Column*>(memory + block_bytes(args.each));
  const Place at;
  const Ops::DeltaNet& net = args.net.net;
  const int channels = static_cast<int>(2 * net.key_heads + net.value_heads) * kDim;
  const int64_t first = blockIdx.z * args.each;
  const Run run = args.runs[blockIdx.z];
  const auto tokens = static_cast<int>(run.tokens);

  arrive_running();
  float* matrix = reinterpret_cast<float*>(run.slot + net.state) + int64_t{at.head} * kDim * kDim + at.half * kHalf;
  float* history = reinterpret_cast<float*>(run.slot + args.net.history);
  Convolution convolution;
  float rate, bias, norm;
  // As much as can be is asked for at once: in the shadow of a product each answer takes a microsecond or two.
  const auto ask = [&] {
    rate = net.a_log[at.head];
    bias = net.dt_bias[at.head];
    norm = args.net.norm[at.half * kHalf + at.thread % kHalf];
    if (tokens > 0) {  // else the whole cluster has none
      Convolution::ask(args, at, history, channels);
      fetch_matrix(at, matrix, block);
    }
    if (at.thread == 0) mailbox.open(tokens * kSlices * static_cast<int>(sizeof(float)));
    await_cluster();
  };
  if (args.gates_given) {
    ask();
    await_previous();
  } else {
    multiply_gates(args, at, first, tokens, columns, ask);
  }
  if (tokens > 0) convolution.load(args, at, history, channels);
  if (at.thread < kHalf) block.norm[at.thread] = norm;
  await_copies<0>();
  arrive_prepared();
  await_cluster();
  work_out_gates(args, at, first, tokens, rate, bias, columns);
  if (tokens > 0) convolution.aim(args, at, first, channels);

  await_previous();
  if (tokens > 0) {
    convolution.fetch(at, tokens, channels, columns);
    convolution.run(args, at, tokens, columns);
    __syncthreads();
    run_steps(at, tokens, args.advance ? matrix : nullptr, block, columns, mailbox);
    if (args.advance) convolution.store(args, at, history, channels);
  }
  write_output(args, at, first, tokens, block, columns, mailbox);
}

bool gates_fit(const Ops::GatedDeltaNet& args) {
  const auto fits = [&](const Weight& w) {
    return w.format == WeightFormat::kBF16 && w.inputs % 4 == 0 && by_fours(4, w.data);
  };
  return fits(args.a_proj) && fits(args.b_proj) && by_fours(4, args.x);
}

// Of a block: as much as leaves not too many to a multiprocessor, for late blocks would all crowd onto those that have
// room first. A sequence's few columns find room beside the projections' blocks, and leave it to the next product's.
int64_t shared_bytes(int64_t runs, int64_t each) {
  constexpr int64_t kTwoFit = 96 << 10;
  constexpr int64_t kFourFit = 50'000;
  const int64_t needed = block_bytes(each) + each * static_cast<int64_t>(sizeof(Column));
  if (each > 4 || (runs == 2 && each == 1)) return kTwoFit;
  return each == 1 && runs <= 4 ? kFourFit : needed;
}

void launch(const Context& context, const Few& args, int64_t runs) {
  const Ops::DeltaNet& net = args.net.net;
  const auto blocks = static_cast<unsigned>(2 * net.value_heads / net.key_heads);
  const dim3 grid(blocks, static_cast<unsigned>(net.key_heads), static_cast<unsigned>(runs));
  const int64_t shared = shared_bytes(runs, args.each);
  allow_shared(delta_few_kernel, shared);
  // As the projections, whose blocks are on the card (follow.cuh).
  prefer_shared(delta_few_kernel, cudaSharedmemCarveoutMaxShared);
  launch_following_clusters(context, dim3(blocks), delta_few_kernel, grid, dim3(kThreads), static_cast<size_t>(shared),
                            args);
}

bool few_serves(const Context& context, const Columns& columns, const Ops::GatedDeltaNet& args) {
  const Ops::DeltaNet& net = args.net;
  return context.tensor_cores && columns.count() <= kMostFewColumns && net.key_dim == kDim && net.value_dim == kDim &&
         args.kernel == kTaps && 2 * net.value_heads / net.key_heads <= kMostCluster && net.state % 16 == 0 &&
         by_fours(4, net.out);
}

}  // namespace

bool gated_delta_net(const Context& context, const Columns& columns, const Ops::GatedDeltaNet& args) {
  if (!few_serves(context, columns, args)) return false;
  if (columns.count() == 0) return true;
  const Few few{columns.table, columns.each, columns.advance, !gates_fit(args), args};
  if (few.gates_given) {
    const Ops::Product gates[] = {{args.a_proj, args.a}, {args.b_proj, args.b}};
    linear_group(context, args.x, columns.count(), gates, true);
  }
  if (!context.plans()) launch(context, few, static_cast<int64_t>(columns.runs.size()));
  return true;
}

}  // namespace tandem::ops::cuda
