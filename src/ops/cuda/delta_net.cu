#include <algorithm>

#include "ops/cuda/delta_chunks.cuh"
#include "ops/cuda/delta_net.h"
#include "ops/cuda/delta_steps.cuh"

namespace tandem::ops::cuda {

namespace {

bool takes_chunks(const Context& context, const Columns& columns, const Ops::DeltaNet& args) {
  return context.tensor_cores && columns.count() > kMostFewColumns && columns.each >= kChunk &&
         args.key_dim == kChunkKeyDim && args.value_dim % kChunkColumns == 0;
}

// Tokens of a run before its first whole chunk, and how many chunks follow.
struct Cut {
  int64_t before = 0;
  int64_t chunks = 0;
};
Cut cut(const Run& run) {
  const int64_t before = (kChunk - run.position % kChunk) % kChunk;
  return {before, std::max<int64_t>(0, run.tokens - before) / kChunk};
}

// `chunks` has the memory of a slab.
void run_chunks(const Context& context, const Ops::DeltaNet& args, int64_t first, int64_t count, Chunks chunks) {
  const int64_t stride = 2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim;
  for (int64_t done = 0; done < count; done += kSlabChunks) {
    const int64_t token = first + done * kChunk;
    chunks.count = std::min(count - done, kSlabChunks);
    chunks.net = args;
    chunks.net.qkv += token * stride;
    chunks.net.a += token * args.value_heads;
    chunks.net.b += token * args.value_heads;
    chunks.net.out += token * args.value_heads * args.value_dim;
    prepare_chunks(context, chunks);
    advance_chunks(context, chunks);
  }
}

// Single steps up to the grid, chunks, single steps and the zeros of padding. A state that may not move on moves in a
// copy.
void run_on_grid(const Context& context, const Columns& columns, const Ops::DeltaNet& args, int64_t index,
                 Chunks chunks, float* twin) {
  const Run& run = columns.runs[static_cast<size_t>(index)];
  const Cut parts = cut(run);
  const int64_t end = parts.before + parts.chunks * kChunk;
  auto* state = reinterpret_cast<float*>(run.slot + args.state);
  if (!columns.advance) {
    const auto bytes = static_cast<size_t>(args.value_heads * args.key_dim * args.value_dim) * sizeof(float);
    TANDEM_CUDA_CHECK(cudaMemcpyAsync(twin, state, bytes, cudaMemcpyDeviceToDevice, context.stream));
    state = twin;
  }
  chunks.state = state;
  delta_steps(context, columns, args, {.first_run = index, .runs = 1, .begin = 0, .end = parts.before, .state = state});
  run_chunks(context, args, index * columns.each + parts.before, parts.chunks, chunks);
  delta_steps(context, columns, args,
              {.first_run = index, .runs = 1, .begin = end, .end = columns.each, .state = state});
}

}  // namespace

void delta_net(const Context& context, const Columns& columns, const Ops::DeltaNet& args) {
  if (args.key_dim % 16 != 0 || args.value_dim % 16 != 0 || args.key_dim > 256) {
    base::internal_error("cuda", "a DeltaNet head of {} x {}: multiples of 16 and keys up to 256 are served",
                         args.key_dim, args.value_dim);
  }
  if (columns.count() == 0) return;
  const auto runs = static_cast<int64_t>(columns.runs.size());
  const StepRange all{.first_run = 0, .runs = runs, .begin = 0, .end = columns.each};
  if (!takes_chunks(context, columns, args)) {
    if (!context.plans()) delta_steps(context, columns, args, all);
    return;
  }
  const Scratch::Scope scope(context.scratch);
  const int64_t slab = std::min(columns.each / kChunk, kSlabChunks);
  Chunks chunks;
  chunks.keys = context.scratch.take<ChunkKeys>(slab * args.key_heads);
  chunks.heads = context.scratch.take<ChunkHead>(slab * args.value_heads);
  float* twin = nullptr;
  if (!columns.advance) twin = context.scratch.take<float>(args.value_heads * args.key_dim * args.value_dim);
  if (context.plans()) return;
  if (std::none_of(columns.runs.begin(), columns.runs.end(), [](const Run& run) { return cut(run).chunks > 0; })) {
    delta_steps(context, columns, args, all);
    return;
  }
  for (int64_t r = 0; r < runs; ++r) run_on_grid(context, columns, args, r, chunks, twin);
}

}  // namespace tandem::ops::cuda
