// One loaded model on one device: weights and the forward pass, written once against ops.
//
// A Model holds no state of sequences. The caller (context) owns the memory that StateLayout describes and passes a
// SequenceView with every call; a forward consumes tokens of one or more sequences and updates their state in place.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "artifact/artifact.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "device/device.h"
#include "experts/ngram_table.h"
#include "model/config.h"
#include "ops/make_ops.h"

namespace tandem::model {

inline constexpr int64_t kPageTokens = 64;  // tokens of one KV page
// Steps that a model keeps recorded at most; one more and all are forgotten. A sequence that grows to 262,144 tokens
// comes through nine lengths, and needs a few more for the ends of prompts.
inline constexpr int64_t kMostRecordings = 24;

enum class Activations {
  kF32,   // no casts at all: the reference that the goldens were made with
  kBF16,  // inputs of matrix products are rounded to BF16
};

enum class KvCache {
  kActivations,  // BF16, or FP32 where the activations are
  kInt8,         // 8-bit codes with a scale to 64 dimensions
};

enum class ExpertMode {
  kW4A16,  // quantised weights, activations as `Activations` says
  kW4A4,   // activations in 4 bits with NVFP4, in 8 with other weights: the canonical expert arithmetic, the default
};

enum class ExpertArithmetic {
  kCanonical,  // the same bits on the processor and on cards
  kBF16,       // on cards, more than a few columns in BF16 products, within a tolerance of the canonical numbers
};

struct LoadOptions {
  Activations activations = Activations::kBF16;
  KvCache kv_cache = KvCache::kActivations;
  std::set<std::string> portable{};  // a card's operations that do without tensor cores (ops::OpsOptions)
  int64_t chunk = 2048;              // columns that are computed together at most; a longer forward is cut
  ExpertMode expert_mode = ExpertMode::kW4A4;
  ExpertArithmetic expert_arithmetic = ExpertArithmetic::kCanonical;
  int64_t indexer_budget = 0;         // tokens; 0 takes the config's (tests override it)
  std::optional<base::CpuLevel> isa;  // the host's kernels; none takes the processor's best
  experts::NgramOptions ngram;        // how rows of the n-gram table are read and kept
  // The table of embeddings stays in the host's memory, page-locked: a step reads a row a token of it. Not where it is
  // the output matrix too.
  bool embedding_in_host_memory = false;
  // Loads the draft head too, which takes weights of its own and a layer's part of every page.
  bool draft_head = false;
  bool quiet = true;  // no progress on standard error
};

ops::OpsOptions ops_options(const LoadOptions& options);

// Bytes of the state of sequences (docs/architecture.md, "State").
struct StateLayout {
  int64_t page_bytes = 0;  // one page: 64 tokens of keys, values and index keys of every attention layer and the MTP
  int64_t slot_bytes = 0;  // one slot: recurrent, convolution, n-gram and unfinished-block state of one sequence
};

// Where one sequence's state lies. `block_table`, `pages` and `slot` point into memory of the model's device.
struct SequenceView {
  int64_t length = 0;                     // tokens consumed so far
  int64_t page_count = 0;                 // of the block table
  const int32_t* block_table = nullptr;   // page numbers, block_table[i] holds tokens [64 i, 64 i + 64)
  std::byte* pages = nullptr;             // page p starts at pages + p * page_bytes; the same for all sequences
  std::byte* slot = nullptr;              // slot_bytes, zeroed for a new sequence
  std::array<int32_t, 2> window{-1, -1};  // the token before, and the one before that; -1 before the start

  // The same sequence with these tokens consumed.
  SequenceView after(std::span<const int32_t> tokens) const;
};

// One sequence's tokens in a forward.
struct Part {
  SequenceView view;
  std::span<const int32_t> tokens;
};

struct ForwardRequest {
  int64_t logits = 1;         // rows of logits to return: those of the last `logits` tokens of each part; 0 for none
  bool advance = true;        // false: recurrent state is read and not moved on (verification of drafts, 8 columns)
  bool hidden = false;        // also the residual state after each layer
  bool routing = false;       // also the router's choices
  bool selection = false;     // also the blocks that sparse attention selected
  bool draft_hidden = false;  // also what the draft head takes
  // The logits stay on the device, for greedy(), top_logits() and read_logits() of the model; the forward does not wait
  // for them, and its faults are told there or by settle(). Not together with inner states.
  bool keep_logits = false;
};

struct ForwardOutput {
  std::vector<float> logits;          // [parts, rows, vocab]
  std::vector<float> hidden;          // [layers, T, streams * hidden]: before the final norm or mixer
  std::vector<float> draft_hidden;    // [T, draft_width]: what the draft head takes; filled where request.draft_hidden
  std::vector<int32_t> router_ids;    // [layers, T, top_k], best first
  std::vector<float> router_weights;  // [layers, T, top_k], normalised
  // [attention layers][T] lists of selected complete blocks, ascending; the unfinished tail block is not listed.
  std::vector<std::vector<std::vector<int32_t>>> selected_blocks;

  // Empties all and keeps the memory, for the next forward.
  void clear() {
    logits.clear();
    hidden.clear();
    draft_hidden.clear();
    router_ids.clear();
    router_weights.clear();
    selected_blocks.clear();
  }
};

class Model {
 public:
  // Reads the weights into the device's memory. The artifact must stay where it is as long as the model lives: n-gram
  // rows are read from it at run time. Throws base::Error for an artifact that lacks a tensor or has one of another
  // shape.
  static std::unique_ptr<Model> load(const artifact::Artifact& artifact, device::Device& device, base::WorkerPool& pool,
                                     const LoadOptions& options);
  // The same with operations of the caller's, made for the device with ops_options().
  static std::unique_ptr<Model> load(const artifact::Artifact& artifact, device::Device& device,
                                     std::unique_ptr<ops::Ops> operations, base::WorkerPool& pool,
                                     const LoadOptions& options);
  virtual ~Model() = default;

  virtual device::Device& device() const = 0;

  virtual const Config& config() const = 0;
  virtual const StateLayout& state_layout() const = 0;
  virtual int64_t weight_bytes() const = 0;
  // Makes room for every step of contexts up to `reach` tokens, so that none allocates.
  virtual void reserve(int64_t reach) = 0;
  // Steps are recorded anew, with what the operations do by then (measurements).
  virtual void forget_recordings() = 0;
  // Recordings that one step runs, one behind the other, where it is recorded.
  virtual int64_t recordings_of_step() const { return 1; }

  // Consumes each part's tokens at positions [view.length, view.length + T). The block table must hold pages for them.
  // The caller adds T to the length afterwards. Several parts have the same number of tokens each and are at most
  // ops::kMostFewColumns together; hidden states, routing and selection are told of a single part alone. A part's
  // numbers do not depend on the others. Not thread-safe: one forward at a time.
  virtual void forward(std::span<const Part> parts, const ForwardRequest& request, ForwardOutput& output) = 0;

  // Of the last forward, which kept its logits; each waits for it and throws what it would have thrown.
  //
  // The likeliest of the first `tokens` ids of each row, as ops::Ops::greedy says. `allowed` is empty, or has for each
  // row which ids it may be, by bit i % 64 of word i / 64; ids beyond a row's words are forbidden, a row without words
  // forbids nothing.
  virtual std::vector<int32_t> greedy(int64_t tokens, std::span<const std::span<const uint64_t>> allowed) = 0;
  // The largest logits of each row, as ops::Ops::top_logits has them, until the next call.
  struct TopLogits {
    bool finite = true;  // else there are none
    std::span<const ops::TokenLogit> best;
  };
  virtual std::vector<TopLogits> top_logits(int64_t tokens, std::span<const std::span<const uint64_t>> allowed) = 0;
  // All of them, [parts, rows, vocab], in the host's memory until the next forward.
  virtual std::span<const float> read_logits() = 0;
  virtual void settle() = 0;

  // Tells the model that these tokens will be the next of the sequence, as early as that is known, so that what lies on
  // disk is on its way when forward() needs it. A hint: ids outside the vocabulary are no error here.
  virtual void prefetch(const SequenceView& view, std::span<const int32_t> tokens) = 0;
  virtual experts::NgramCounters ngram_counters() const = 0;  // summed over the layers that have such a memory

  // The draft head (docs/architecture.md, "The draft head"). Entry i takes the target's hidden state of position
  // first + i (kept by the last forward call that covered it, or the draft's own for a chained step) and the embedding
  // of next_tokens[i], and predicts the token after that. Appends to the draft layer's own cache.
  struct DraftRequest {
    int64_t first = 0;  // position of the first entry
    std::span<const int32_t> next_tokens;
    std::span<const float> hidden;  // [n, width] as `draft_hidden` below or ForwardOutput::draft_hidden
    int64_t logits = 1;
  };
  struct DraftOutput {
    std::vector<float> logits;        // [rows, vocab]
    std::vector<float> draft_hidden;  // [n, width]: what a chained step takes as its hidden
  };
  virtual bool has_draft_head() const = 0;  // the checkpoint has one, and it was asked for
  virtual int64_t draft_width() const = 0;
  virtual void draft(const SequenceView& view, const DraftRequest& request, DraftOutput& output) = 0;
};

}  // namespace tandem::model
