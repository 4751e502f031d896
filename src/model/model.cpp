#include "model/model.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "model/draft_head.h"
#include "model/layer.h"
#include "model/ngram.h"
#include "ops/host/host_ops.h"

namespace tandem::model {

namespace {

class Decoder final : public Model {
 public:
  Decoder(const artifact::Artifact& artifact, base::WorkerPool& pool, const LoadOptions& options);

  const Config& config() const override { return config_; }
  const StateLayout& state_layout() const override { return layout_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  void forward(const SequenceView& view, std::span<const int32_t> tokens, const ForwardRequest& request,
               ForwardOutput& output) override;
  void prefetch(const SequenceView& view, std::span<const int32_t> tokens) override;
  experts::NgramCounters ngram_counters() const override;
  bool has_draft_head() const override { return draft_ != nullptr; }
  int64_t draft_width() const override { return config_.width(); }
  void draft(const SequenceView& view, const DraftRequest& request, DraftOutput& output) override;

 private:
  Step make_step(const SequenceView& view, int64_t position, int64_t tokens);
  void check_tokens(std::span<const int32_t> tokens) const;
  // Rows of the last `rows` of `tokens` heads' inputs [tokens, hidden] to logits.
  void head(const float* inputs, int64_t tokens, int64_t rows, std::vector<float>& logits);
  void run_layers(const Step& step, std::span<const int32_t> tokens, float* state, const ForwardRequest& request,
                  ForwardOutput& output);
  void finish(const Step& step, const float* state, const ForwardRequest& request, ForwardOutput& output);

  const Config config_;
  ops::host::HostOps ops_;
  Arena arena_;
  StateLayout layout_;
  std::vector<device::Buffer> memory_;
  int64_t weight_bytes_ = 0;
  ops::Weight embedding_;
  ops::Weight lm_head_;
  const float* final_norm_ = nullptr;
  ops::HyperWeights final_mixer_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::map<int64_t, std::unique_ptr<NgramMemory>> ngram_;  // by the layer they precede
  std::unique_ptr<DraftHead> draft_;
};

Decoder::Decoder(const artifact::Artifact& artifact, base::WorkerPool& pool, const LoadOptions& options)
    : config_(Config::from_json(artifact.config(), artifact.folder().string())),
      ops_(pool, options.activations == Activations::kBF16,
           options.isa ? ops::host::kernels(*options.isa) : ops::host::kernels()) {
  WeightLoader loader(artifact, options.quiet);
  LayoutBuilder layout;
  const std::string root = "model.language_model";
  embedding_ = loader.matrix(root + ".embed_tokens.weight", config_.vocab, config_.hidden);
  lm_head_ = config_.tie_word_embeddings ? embedding_ : loader.matrix("lm_head.weight", config_.vocab, config_.hidden);
  for (int64_t i = 0; i < config_.layers; ++i) {
    const std::string name = root + ".layers." + std::to_string(i);
    if (std::count(config_.ngram_layers.begin(), config_.ngram_layers.end(), i) > 0) {
      ngram_[i] = std::make_unique<NgramMemory>(config_, name + ".ple", options.ngram, loader, layout);
    }
    layers_.push_back(std::make_unique<DecoderLayer>(config_, name, config_.layer_types[static_cast<size_t>(i)],
                                                     options, loader, layout));
  }
  if (config_.family == Family::kQwen4Exp) {
    final_mixer_ = load_hyper(config_, root + ".hyper_connection_mixer", false, loader);
  } else {
    final_norm_ = loader.vector(root + ".norm.weight", config_.hidden);
  }
  if (config_.mtp_layers > 0 && artifact.find("mtp.pre_fc_norm_hidden.weight") != nullptr) {
    draft_ = std::make_unique<DraftHead>(config_, options, loader, layout);
  }
  layout_ = layout.layout();
  weight_bytes_ = loader.bytes();
  memory_ = loader.take();
}

Step Decoder::make_step(const SequenceView& view, int64_t position, int64_t tokens) {
  if (static_cast<int64_t>(view.block_table.size()) * kPageTokens < position + tokens) {
    base::internal_error("model", "{} pages hold {} tokens, position {} was to be written", view.block_table.size(),
                         static_cast<int64_t>(view.block_table.size()) * kPageTokens, position + tokens - 1);
  }
  return {ops_, arena_, view, position, tokens, static_cast<float>(config_.rms_norm_eps), layout_.page_bytes};
}

void Decoder::check_tokens(std::span<const int32_t> tokens) const {
  if (tokens.empty()) base::internal_error("model", "a forward needs at least one token");
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config_.vocab) {
      base::bad_input("token ids", "{} is outside the vocabulary of {}", token, config_.vocab);
    }
  }
}

void Decoder::head(const float* inputs, int64_t tokens, int64_t rows, std::vector<float>& logits) {
  logits.resize(static_cast<size_t>(rows * config_.vocab));
  ops_.linear(inputs + (tokens - rows) * config_.hidden, rows, lm_head_, false, logits.data());
}

void Decoder::run_layers(const Step& step, std::span<const int32_t> tokens, float* state, const ForwardRequest& request,
                         ForwardOutput& output) {
  for (int64_t i = 0; i < config_.layers; ++i) {
    if (const auto memory = ngram_.find(i); memory != ngram_.end()) memory->second->forward(step, tokens, state);
    Routing routing;
    ops::BlockSelection selection;
    LayerCapture capture;
    if (request.routing && config_.moe()) capture.routing = &routing;
    if (request.selection && config_.sparse()) capture.selection = &selection;
    layers_[static_cast<size_t>(i)]->forward(step, state, capture);
    if (request.hidden) output.hidden.insert(output.hidden.end(), state, state + step.tokens * config_.width());
    output.router_ids.insert(output.router_ids.end(), routing.ids.begin(), routing.ids.end());
    output.router_weights.insert(output.router_weights.end(), routing.weights.begin(), routing.weights.end());
    if (capture.selection == nullptr || selection.rows.empty()) continue;
    auto& blocks = output.selected_blocks.emplace_back();
    for (int64_t t = 0; t < step.tokens; ++t) {
      ops::BlockSelection::Row& row = selection.rows[static_cast<size_t>(t)];
      if (row.all) {
        const int64_t visible = (step.position + t + 1) / config_.indexer_ratio;
        for (int64_t b = 0; b < visible; ++b) row.blocks.push_back(static_cast<int32_t>(b));
      }
      blocks.push_back(std::move(row.blocks));
    }
  }
}

void Decoder::finish(const Step& step, const float* state, const ForwardRequest& request, ForwardOutput& output) {
  const Arena::Scope scope(arena_);
  const int64_t rows = std::min(request.logits, step.tokens);
  // One stream: the draft head takes what follows the final norm, so all tokens need it.
  const bool all = request.draft_hidden && final_norm_ != nullptr;
  const int64_t count = all ? step.tokens : rows;
  if (request.draft_hidden && final_norm_ == nullptr) {
    output.draft_hidden.assign(state, state + step.tokens * config_.width());
  }
  if (count == 0) return;
  float* inputs = arena_.take<float>(count * config_.hidden);
  const float* last = state + (step.tokens - count) * config_.width();
  if (final_norm_ != nullptr) {
    ops_.rms_norm(last, count, 1, config_.hidden, final_norm_, step.eps, inputs);
  } else {
    ops_.hyper_mix(final_mixer_, last, count, config_.streams, config_.hidden, step.eps, inputs, nullptr);
  }
  if (all) output.draft_hidden.assign(inputs, inputs + count * config_.hidden);
  head(inputs, count, rows, output.logits);
}

void Decoder::forward(const SequenceView& view, std::span<const int32_t> tokens, const ForwardRequest& request,
                      ForwardOutput& output) {
  check_tokens(tokens);
  const auto count = static_cast<int64_t>(tokens.size());
  const Step step = make_step(view, view.length, count);
  output = {};
  prefetch(view, tokens);  // the rows come while the layers before the memory are computed
  const Arena::Scope scope(arena_);
  float* state = arena_.take<float>(count * config_.width());
  ops_.embed(embedding_, tokens, config_.streams, state);
  run_layers(step, tokens, state, request, output);
  finish(step, state, request, output);
}

void Decoder::prefetch(const SequenceView& view, std::span<const int32_t> tokens) {
  for (const auto& [layer, memory] : ngram_) memory->prefetch(view, tokens);
}

experts::NgramCounters Decoder::ngram_counters() const {
  experts::NgramCounters sum;
  for (const auto& [layer, memory] : ngram_) sum += memory->counters();
  return sum;
}

void Decoder::draft(const SequenceView& view, const DraftRequest& request, DraftOutput& output) {
  if (draft_ == nullptr) base::bad_input("model", "the checkpoint has no draft head");
  check_tokens(request.next_tokens);
  const auto count = static_cast<int64_t>(request.next_tokens.size());
  if (static_cast<int64_t>(request.hidden.size()) != count * config_.width()) {
    base::internal_error("draft", "{} hidden values for {} entries of {}", request.hidden.size(), count,
                         config_.width());
  }
  const Step step = make_step(view, request.first, count);
  const Arena::Scope scope(arena_);
  float* embeddings = arena_.take<float>(count * config_.hidden);
  float* inputs = arena_.take<float>(count * config_.hidden);
  ops_.embed(embedding_, request.next_tokens, 1, embeddings);
  output.draft_hidden.resize(request.hidden.size());
  draft_->forward(step, request.hidden.data(), embeddings, output.draft_hidden.data(), inputs);
  const int64_t rows = std::min(request.logits, count);
  output.logits.clear();
  if (rows > 0) head(inputs, count, rows, output.logits);
}

}  // namespace

std::unique_ptr<Model> Model::load(const artifact::Artifact& artifact, base::WorkerPool& pool,
                                   const LoadOptions& options) {
  return std::make_unique<Decoder>(artifact, pool, options);
}

}  // namespace tandem::model
