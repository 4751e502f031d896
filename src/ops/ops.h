// The operations a model is written with, at the grain of one fused kernel or a few.
//
// A model (src/model) calls these and nothing else that computes; each device implements the whole list. All
// activations are FP32, C order, [tokens, width]; weights have the formats below. Operands lie in the device's memory.
// Calls are made from one thread and take effect in order; none waits for the device, so that a step of them can be
// recorded once and run again: what differs from step to step is read from the device's memory (`Columns::table`).
//
// Sums that ranks share have two halves (docs/architecture.md, "Numbers"): "lower" and "upper" are the halves of the
// inputs, or the even and the odd experts; the result is lower + upper in FP32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "numeric/expert_record.h"
#include "ops/weight.h"

namespace tandem::ops {

using numeric::ExpertFormat;

// The routed experts of one layer: records of gate, up [inner, hidden] and down [hidden, inner] (docs/artifact.md).
struct ExpertTable {
  numeric::ExpertRecord record;
  const std::byte* records = nullptr;  // record.bytes each
  int64_t experts = 0;
  int64_t inner = 0;
  int64_t hidden = 0;
  // NVFP4: [experts, scalars_each]: weight_scale_2 of gate, up, down; of six also input_scale of gate, up, down. With
  // three, each column takes numeric::dynamic_input_scale.
  const float* scalars = nullptr;
  int64_t scalars_each = 6;

  // Sets `record`. Throws base::Error{kBadInput} where a format cannot hold the shape.
  void place(const numeric::ExpertFormats& formats);
};

// Consecutive tokens of one sequence, and where its state lies. Read by the host and by the device's kernels.
struct Run {
  int64_t position = 0;                  // of the first token
  int64_t tokens = 0;                    // at most Columns::each; columns behind them are padding, and change no state
  std::byte* slot = nullptr;             // recurrent state
  const int32_t* block_table = nullptr;  // block_table[i] is the page of tokens [64 i, 64 i + 64)
};

// The columns of a step: those of run r are each * r and the following.
struct Columns {
  std::span<const Run> runs;   // on the host
  const Run* table = nullptr;  // the same in the device's memory
  int64_t each = 1;
  int64_t reach = 0;    // every run ends at or before this position; what a recorded step is made for
  bool advance = true;  // recurrent state moves on; else it is read alone (verification of drafts)

  int64_t count() const { return static_cast<int64_t>(runs.size()) * each; }
};
// Operations of at most so many columns give each column the bits that it has alone.
inline constexpr int64_t kMostFewColumns = 8;

enum class KvType : uint8_t {
  kBF16,
  kF32,
  kInt8,  // codes with an FP16 scale to 64 dimensions (numeric/int8_kv.h)
};

// One attention layer's part of the KV pages. In a page: keys [kv_heads, 64, head_dim], then values likewise, then with
// kInt8 the scales of both [2, kv_heads, 64, head_dim / 64] in FP16, then pooled index keys [64 / ratio, index_dim],
// which are BF16 with kInt8.
struct KvLayer {
  std::byte* pages = nullptr;
  int64_t page_bytes = 0;
  int64_t layer_offset = 0;  // of this layer in a page
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t index_dim = 0;  // 0 without sparse selection
  int64_t ratio = 0;      // tokens of one index block
  KvType type = KvType::kBF16;
};

struct Rotary {
  int64_t dims = 0;  // leading dimensions that rotate, in pairs (i, i + dims / 2)
  double theta = 1e7;
  bool operator==(const Rotary&) const = default;
};

// A token and its logit.
struct TokenLogit {
  float logit;
  int32_t id;
};

// Gated residual of several streams (hyper-connection). `inject` has no data in the final mixer.
struct HyperWeights {
  const float* norm = nullptr;  // [streams * hidden]
  Weight down;                  // [lowrank, streams * hidden]
  Weight up;                    // [streams * hidden, lowrank]
  Weight inject;                // [streams, streams * hidden]
};

struct NgramWeights {
  Weight key;                       // [streams * hidden, embed]
  Weight value;                     // [hidden, embed]
  const float* norm_key = nullptr;  // [streams * hidden], as the next two
  const float* norm_query = nullptr;
  const float* norm_conv = nullptr;
  const float* conv = nullptr;  // [kernel, streams * hidden], oldest tap first
  int64_t kernel = 4;
  int64_t dilation = 3;
};

// Attention over chosen blocks: for each column the complete blocks that it attends to, ascending; tokens of the
// unfinished block follow.
struct BlockSelection {
  int64_t budget = 0;
  int32_t* blocks = nullptr;  // [columns, budget]
  int32_t* counts = nullptr;  // [columns]; kEverything where at most `budget` are visible: all up to itself
  static constexpr int32_t kEverything = -1;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Goes through a step of operations without computing anything, and makes the scratch memory that they need; a step
  // that needs no more later finds it at the same addresses. Nothing to do on the host.
  virtual void prepare(const std::function<void()>& step) { (void)step; }
  virtual int64_t scratch_bytes() const { return 0; }
  // Whether a step of these operations may be recorded (device::Device::record).
  virtual bool recordable() const { return true; }

  // May bring a matrix that was just loaded into the order in which its products read it, in place: the memory behind
  // `data` must be the caller's. Products of a matrix do not depend on it; everything else must ask for its order.
  virtual void arrange(Weight& w) { (void)w; }
  // Whether it will: the weight's lane_order is then set.
  virtual bool arranges(const Weight& w) const {
    (void)w;
    return false;
  }

  // out[t] = the row of ids[t], `copies` times side by side. The table may lie in shared memory.
  virtual void embed(const Weight& table, const int32_t* ids, int64_t tokens, int64_t copies, float* out) = 0;

  // Each group of `width` by its own root mean square: out = x / rms * (1 + weight). x, out [tokens, groups * width].
  virtual void rms_norm(const float* x, int64_t tokens, int64_t groups, int64_t width, const float* weight, float eps,
                        float* out) = 0;

  // y = x w^T. `exact_inputs` keeps FP32 inputs where the others are rounded to BF16 (router and gates).
  virtual void linear(const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y) = 0;
  // The two halves of the same over the inputs, each [tokens, rows].
  virtual void linear_halves(const float* x, int64_t tokens, const Weight& w, float* lower, float* upper) = 0;

  // Several products of the same inputs, as linear() gives them.
  struct Product {
    Weight w;
    float* y = nullptr;
  };
  virtual void linear_group(const float* x, int64_t tokens, std::span<const Product> products, bool exact_inputs) {
    for (const Product& product : products) linear(x, tokens, product.w, exact_inputs, product.y);
  }
  // y = lower + upper of linear_halves(); `upper` [tokens, rows] is scratch.
  virtual void linear_sum(const float* x, int64_t tokens, const Weight& w, float* y, float* upper) {
    linear_halves(x, tokens, w, y, upper);
    add(y, upper, tokens * w.rows);
  }
  // y = silu(x gate^T) * (x up^T); `other` [tokens, rows] is scratch.
  virtual void swiglu(const float* x, int64_t tokens, const Weight& gate, const Weight& up, float* y, float* other) {
    const Product products[] = {{gate, y}, {up, other}};
    linear_group(x, tokens, products, false);
    silu_multiply(y, other, tokens * gate.rows, y);
  }

  // y[i] += x[i].
  virtual void add(float* y, const float* x, int64_t count) = 0;
  // y += x, and out = y / rms * (1 + weight): add(), then rms_norm() of one group. All [tokens, width].
  virtual void add_rms_norm(float* y, const float* x, int64_t tokens, int64_t width, const float* weight, float eps,
                            float* out) {
    add(y, x, tokens * width);
    rms_norm(y, tokens, 1, width, weight, eps, out);
  }
  // y[t, s] += x[t] for every stream s. y [tokens, streams, hidden].
  virtual void add_to_streams(float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden) = 0;
  // out[t] = left[t] then right[t], each `width`.
  virtual void concatenate(const float* left, const float* right, int64_t tokens, int64_t width, float* out) = 0;
  // y = silu(gate) * up.
  virtual void silu_multiply(const float* gate, const float* up, int64_t count, float* y) = 0;

  // x [tokens, hidden] = the mix of the streams of state [tokens, streams, hidden]; inject [tokens, streams], or null
  // in the final mixer.
  virtual void hyper_mix(const HyperWeights& w, const float* state, int64_t tokens, int64_t streams, int64_t hidden,
                         float eps, float* x, float* inject) = 0;
  // state[t, s] += inject[t, s] * y[t].
  virtual void hyper_inject(float* state, const float* y, const float* inject, int64_t tokens, int64_t streams,
                            int64_t hidden) = 0;

  // hyper_inject, then hyper_mix of the new state, whose factors go to other memory than `inject`.
  virtual void hyper_inject_mix(float* state, const float* y, const float* inject, const HyperWeights& w,
                                int64_t tokens, int64_t streams, int64_t hidden, float eps, float* x,
                                float* next_inject) {
    hyper_inject(state, y, inject, tokens, streams, hidden);
    hyper_mix(w, state, tokens, streams, hidden, eps, x, next_inject);
  }

  // out[t] = silu of the causal convolution of x over lags (kernel - 1) * dilation … 0. The floats at `history` bytes
  // of each run's slot are the last (kernel - 1) * dilation inputs, oldest first, and are moved on. weight [kernel,
  // channels], oldest tap first.
  virtual void causal_conv(const Columns& columns, const float* x, int64_t channels, const float* weight,
                           int64_t kernel, int64_t dilation, int64_t history, float* out) = 0;

  struct DeltaNet {
    const float* qkv = nullptr;    // [tokens, 2 * key_heads * key_dim + value_heads * value_dim] after the convolution
    const float* a = nullptr;      // [tokens, value_heads]
    const float* b = nullptr;      // [tokens, value_heads]
    const float* a_log = nullptr;  // [value_heads]
    const float* dt_bias = nullptr;  // [value_heads]
    int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
    int64_t state = 0;     // byte offset in a slot: [value_heads, key_dim, value_dim] floats
    float* out = nullptr;  // [tokens, value_heads * value_dim]
  };
  // Whole 64-token chunks of the absolute grid take the chunk form.
  virtual void delta_net(const Columns& columns, const DeltaNet& args) = 0;
  // x = x / rms * weight * act(z) for each head; act is sigmoid or silu. x, z [tokens, heads * dim], weight [dim].
  virtual void gated_norm(float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim, const float* weight,
                          float eps, bool sigmoid) = 0;

  // What lies between the wide products of Gated DeltaNet: the gates' products, the convolution, the recurrence and the
  // gated norm.
  struct GatedDeltaNet {
    const float* x = nullptr;     // [tokens, hidden], the gates' inputs; not what the product in front wrote
    Weight a_proj, b_proj;        // [value_heads, hidden]
    const float* qkv = nullptr;   // [tokens, channels] before the convolution
    const float* conv = nullptr;  // [kernel, channels]
    int64_t kernel = 4;
    int64_t history = 0;          // byte offset in a slot, as causal_conv() has it
    const float* z = nullptr;     // [tokens, value_heads * value_dim]
    const float* norm = nullptr;  // [value_dim]
    float eps = 1e-6F;
    bool sigmoid = false;
    DeltaNet net;                // but qkv, a and b, whose memory follows: what it holds afterwards is not said
    float* convolved = nullptr;  // [tokens, channels]
    float* a = nullptr;          // [tokens, value_heads]
    float* b = nullptr;
  };
  virtual void gated_delta_net(const Columns& columns, const GatedDeltaNet& args) {
    DeltaNet net = args.net;
    net.qkv = args.convolved;
    net.a = args.a;
    net.b = args.b;
    const int64_t tokens = columns.count();
    const int64_t channels = 2 * net.key_heads * net.key_dim + net.value_heads * net.value_dim;
    const Product gates[] = {{args.a_proj, args.a}, {args.b_proj, args.b}};
    linear_group(args.x, tokens, gates, true);
    causal_conv(columns, args.qkv, channels, args.conv, args.kernel, 1, args.history, args.convolved);
    delta_net(columns, net);
    gated_norm(net.out, args.z, tokens, net.value_heads, net.value_dim, args.norm, args.eps, args.sigmoid);
  }

  struct AttentionInputs {
    const float* q_gate = nullptr;  // [tokens, heads, 2, head_dim]: query, then gate
    const float* k = nullptr;       // [tokens, kv_heads, head_dim]
    const float* v = nullptr;
    const float* q_norm = nullptr;  // [head_dim]
    const float* k_norm = nullptr;
    int64_t heads = 0;
    float eps = 1e-6F;
    Rotary rotary;
    KvLayer kv;          // keys and values are appended here
    float* q = nullptr;  // [tokens, heads, head_dim]
  };
  virtual void attention_inputs(const Columns& columns, const AttentionInputs& args) = 0;

  struct IndexInputs {
    const float* qk = nullptr;      // [tokens, index_heads * dim + dim]: queries, then the key
    const float* q_norm = nullptr;  // [dim]
    const float* k_norm = nullptr;
    int64_t heads = 0;
    float eps = 1e-6F;
    Rotary rotary;
    KvLayer kv;          // pooled keys of blocks that these tokens complete are written here
    int64_t recent = 0;  // byte offset in a slot: floats [kRecentKeys, dim], raw keys of the last tokens, token p in
                         // row p mod kRecentKeys; written even if the columns do not advance, for at most 8 are ahead
    float* q = nullptr;  // [tokens, heads, dim]
  };
  static constexpr int64_t kRecentKeys = 16;
  virtual void index_inputs(const Columns& columns, const IndexInputs& args) = 0;

  struct SelectBlocks {
    const float* q = nullptr;  // [tokens, heads, dim] from index_inputs
    int64_t heads = 0;
    KvLayer kv;
  };
  // The budget's best blocks for each token; the lower index among equal scores.
  virtual void select_blocks(const Columns& columns, const SelectBlocks& args, const BlockSelection& selection) = 0;

  struct Attention {
    const float* q = nullptr;  // [tokens, heads, head_dim]
    int64_t heads = 0;
    float scale = 1;
    KvLayer kv;
    const BlockSelection* selection = nullptr;  // null: causal over everything
    const float* q_gate = nullptr;              // as in AttentionInputs: answers times sigmoid(gate); null: alone
    float* out = nullptr;                       // [tokens, heads, head_dim]
  };
  virtual void attention(const Columns& columns, const Attention& args) = 0;

  // Attention between its projections. Where no column can see more blocks than the selection's budget, `index.q` may
  // be left as it is.
  struct GatedAttention {
    AttentionInputs inputs;
    const BlockSelection* selection = nullptr;  // null: over everything, and without an index
    IndexInputs index;
    float scale = 1;
    float* out = nullptr;  // [tokens, heads, head_dim]

    SelectBlocks select() const { return {.q = index.q, .heads = index.heads, .kv = index.kv}; }
    Attention attention() const {
      return {.q = inputs.q,
              .heads = inputs.heads,
              .scale = scale,
              .kv = inputs.kv,
              .selection = selection,
              .q_gate = inputs.q_gate,
              .out = out};
    }
  };
  virtual void gated_attention(const Columns& columns, const GatedAttention& args) {
    attention_inputs(columns, args.inputs);
    if (args.selection != nullptr) {
      index_inputs(columns, args.index);
      select_blocks(columns, args.select(), *args.selection);
    }
    attention(columns, args.attention());
  }

  // Softmax over all experts, the top_k largest (the lower id among equals), normalised to sum 1. ids and weights
  // [tokens, top_k], best first.
  virtual void router(const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids, float* weights) = 0;
  // The same, and the shared expert's gate: gates [tokens] = x gate^T with exact inputs.
  virtual void router_and_gate(const float* x, int64_t tokens, const Weight& w, const Weight& gate, int64_t top_k,
                               int32_t* ids, float* weights, float* gates) {
    router(x, tokens, w, top_k, ids, weights);
    linear(x, tokens, gate, true, gates);
  }

  struct Experts {
    const float* x = nullptr;  // [tokens, hidden]
    int64_t tokens = 0, top_k = 0;
    const int32_t* ids = nullptr;    // [tokens, top_k]
    const float* weights = nullptr;  // [tokens, top_k]
    ExpertTable table;
    // The canonical arithmetic with 4-bit activations (NVFP4) or 8-bit ones (FP8 and GGUF's block formats); else, and
    // with BF16 weights, activations stay FP32 or BF16.
    bool quantise_activations = false;
    float* lower = nullptr;     // [tokens, hidden]: the even experts
    float* upper = nullptr;     // [tokens, hidden]: the odd ones
    int32_t* faults = nullptr;  // [tokens]: a column whose numbers leave the range that the arithmetic holds is set to
    int32_t fault = 0;          // `fault`, unless it is set (>= 0) already
  };
  virtual void experts(const Experts& args) = 0;
  // out = (lower + g * shared_lower) + (upper + g * shared_upper), g = sigmoid(gate[t]).
  virtual void combine_experts(const float* lower, const float* upper, const float* shared_lower,
                               const float* shared_upper, const float* gate, int64_t tokens, int64_t hidden,
                               float* out) = 0;

  // A layer's feed-forward of experts: the router, those that it chooses, and a shared one beside them.
  struct ExpertMixture {
    Experts experts;           // of the choice below
    Weight router;             // [experts, hidden]
    Weight shared_gate;        // [1, hidden]
    Weight gate, up;           // of the shared expert, [shared inner, hidden]
    Weight down;               // [hidden, shared inner]
    int32_t* ids = nullptr;    // [tokens, top_k]: the router's choice
    float* weights = nullptr;  // [tokens, top_k]
    float* out = nullptr;      // [tokens, hidden]
    // Scratch, as are `lower` and `upper` of `experts`: what it holds afterwards is not said.
    float* gates = nullptr;  // [tokens]
    float* inner = nullptr;  // [tokens, shared inner], as the next
    float* other = nullptr;
    float* shared_lower = nullptr;  // [tokens, hidden], as the next
    float* shared_upper = nullptr;
  };
  virtual void expert_mixture(const ExpertMixture& args) {
    const Experts& e = args.experts;
    router_and_gate(e.x, e.tokens, args.router, args.shared_gate, e.top_k, args.ids, args.weights, args.gates);
    experts(e);
    swiglu(e.x, e.tokens, args.gate, args.up, args.inner, args.other);
    linear_halves(args.inner, e.tokens, args.down, args.shared_lower, args.shared_upper);
    combine_experts(e.lower, e.upper, args.shared_lower, args.shared_upper, args.gates, e.tokens, e.table.hidden,
                    args.out);
  }

  // state += the n-gram memory's answer to rows [tokens, embed]. history: byte offset in a slot, floats
  // [(kernel - 1) * dilation, streams * hidden].
  virtual void ngram_memory(const Columns& columns, const NgramWeights& w, const float* rows, int64_t streams,
                            int64_t hidden, float eps, int64_t history, float* state) = 0;

  struct Greedy {
    const float* logits = nullptr;  // [rows, vocab]
    int64_t rows = 0, vocab = 0;
    int64_t tokens = 0;  // the first of the vocabulary's entries are tokens, the others padding
    // [rows, ceil(tokens / 32)], bit i % 32 of word i / 32 allows token i; null: all are allowed.
    const uint32_t* allowed = nullptr;
    int32_t* ids = nullptr;  // [rows], in shared memory: the host may read them once the device has finished
  };
  // The largest allowed logit of each row, the lower id among equals; -1 where a token's logit, allowed or not, is not
  // finite, and where no token is allowed.
  virtual void greedy(const Greedy& args) = 0;

  struct TopLogits {
    const float* logits = nullptr;  // as in Greedy, down to `allowed`
    int64_t rows = 0, vocab = 0;
    int64_t tokens = 0;
    const uint32_t* allowed = nullptr;
    TokenLogit* best = nullptr;  // [rows, kTopLogits], in shared memory, as `counts`
    int32_t* counts = nullptr;   // [rows]
  };
  static constexpr int64_t kTopLogits = 256;
  // The kTopLogits largest allowed logits of each row, best first, the lower id first among equals. `counts` says how
  // many there are: fewer where fewer are allowed, and -1 where a token's logit, allowed or not, is not finite. What
  // `best` holds behind them is not said.
  virtual void top_logits(const TopLogits& args) = 0;
};

}  // namespace tandem::ops
