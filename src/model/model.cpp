#include "model/model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "model/choices.h"
#include "model/draft_head.h"
#include "model/layer.h"
#include "model/ngram.h"
#include "model/recordings.h"
#include "model/step_inputs.h"
#include "ops/make_ops.h"

namespace tandem::model {

namespace {

class Decoder final : public Model {
 public:
  Decoder(const artifact::Artifact& artifact, device::Device& device, std::unique_ptr<ops::Ops> operations,
          base::WorkerPool& pool, const LoadOptions& options);

  device::Device& device() const override { return device_; }
  const Config& config() const override { return config_; }
  const StateLayout& state_layout() const override { return layout_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  void reserve(int64_t reach) override;
  void forget_recordings() override {
    device_.finish();
    few_.recordings.clear();
  }
  int64_t recordings_of_step() const override { return ngram_.empty() ? 1 : 2; }
  void forward(std::span<const Part> parts, const ForwardRequest& request, ForwardOutput& output) override;
  std::vector<int32_t> greedy(int64_t tokens, std::span<const std::span<const uint64_t>> allowed) override;
  std::vector<TopLogits> top_logits(int64_t tokens, std::span<const std::span<const uint64_t>> allowed) override;
  std::span<const float> read_logits() override;
  void settle() override;
  void prefetch(const SequenceView& view, std::span<const int32_t> tokens) override;
  experts::NgramCounters ngram_counters() const override;
  bool has_draft_head() const override { return draft_ != nullptr; }
  int64_t draft_width() const override { return config_.width(); }
  void draft(const SequenceView& view, const DraftRequest& request, DraftOutput& output) override;

 private:
  // Memory of steps of one kind: those of few columns, and those of many.
  struct StepMemory {
    StepMemory(device::Device& device, int64_t ngram_floats)
        : arena(device), inputs(device, ngram_floats), recordings(device) {}
    Arena arena;
    StepInputs inputs;
    StepShape most;         // there is room for steps up to this
    int64_t moves = 0;      // of the arena, when the recordings were made
    device::Buffer answer;  // shared: faults, then logits of the last step
    Recordings recordings;
  };
  // Logits that a forward kept, and whose faults were not looked at yet.
  struct Kept {
    StepMemory* memory = nullptr;
    ops::Columns columns;
    const float* logits = nullptr;
    int64_t rows = 0;  // of all parts together
    bool settled = false;
    const float* read = nullptr;  // where the host has them too
  };
  StepMemory& memory_of(int64_t columns) { return columns <= ops::kMostFewColumns ? few_ : wide_; }
  // Makes room for a step, so that nothing is allocated in it.
  void make_room(StepMemory& memory, const StepShape& shape);
  // One step: at most chunk_ columns. Appends to the output.
  void run_step(std::span<const Part> parts, const ForwardRequest& request, int64_t rows, ForwardOutput& output);
  // Writes the step's inputs where they can be uploaded from.
  void write_inputs(StepInputs& inputs, std::span<const Part> parts);
  ops::Columns columns_of(StepInputs& inputs, const StepShape& shape) const;
  Step make_step(StepMemory& memory, const ops::Columns& columns, std::byte* pages);
  void read_ngram(StepInputs& inputs, std::span<const Part> parts);
  void check_parts(std::span<const Part> parts, const ForwardRequest& request) const;
  void check_tokens(std::span<const int32_t> tokens) const;
  void check_faults(const ops::Columns& columns, const int32_t* faults) const;
  // From the state before the first layer that needs rows of an n-gram table to the faults and, unless they are kept,
  // logits in memory.answer. Gives the logits on the device.
  const float* compute_rest(StepMemory& memory, const Step& step, Residual& residual, int64_t rows,
                            const ForwardRequest& request, ForwardOutput& output);
  // Whether logits were kept, and `allowed` fits them.
  void check_choice(std::span<const std::span<const uint64_t>> allowed) const;
  void finish_choice();
  // The first layer that needs rows of an n-gram table; 0 where none does.
  int64_t first_ngram_layer() const { return ngram_.empty() ? 0 : ngram_.begin()->first; }
  void run_layers(const Step& step, int64_t begin, int64_t end, Residual& residual, const ForwardRequest& request,
                  ForwardOutput& output);
  void run_layer(const Step& step, int64_t layer, Residual& residual, const ForwardRequest& request,
                 ForwardOutput& output);
  // Logits of the last `rows` columns of each run; null for none.
  const float* finish(const Step& step, Residual& residual, int64_t rows, const ForwardRequest& request,
                      ForwardOutput& output);
  void tell_selection(const Step& step, const ops::BlockSelection& selection, ForwardOutput& output);
  // Appends `count` values of the device's memory.
  template <typename T>
  void append(std::vector<T>& to, const T* from, int64_t count) {
    to.resize(to.size() + static_cast<size_t>(count));
    device_.download(to.data() + to.size() - count, from, count * static_cast<int64_t>(sizeof(T)));
  }

  device::Device& device_;
  const Config config_;
  const int64_t chunk_;
  std::unique_ptr<ops::Ops> ops_;
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
  StepMemory few_;
  StepMemory wide_;
  Kept kept_;
  Choices choices_;
};

// Whether a request wants more than logits: such a step is neither cut nor recorded.
bool wants_inner_states(const ForwardRequest& request) {
  return request.hidden || request.routing || request.selection || request.draft_hidden;
}

int64_t ngram_floats(const Config& config) {
  return static_cast<int64_t>(config.ngram_layers.size()) * config.ngram_embed_dim;
}

Decoder::Decoder(const artifact::Artifact& artifact, device::Device& device, std::unique_ptr<ops::Ops> operations,
                 base::WorkerPool& pool, const LoadOptions& options)
    : device_(device),
      config_(Config::from_json(artifact.config(), artifact.folder().string())),
      chunk_(std::max(options.chunk, ops::kMostFewColumns)),
      ops_(std::move(operations)),
      few_(device, ngram_floats(config_)),
      wide_(device, ngram_floats(config_)),
      choices_(device, *ops_, config_.vocab) {
  WeightLoader loader(artifact, device, *ops_, pool, options.quiet);
  LayoutBuilder layout;
  const std::string root = "model.language_model";
  const std::string embedding = root + ".embed_tokens.weight";
  embedding_ = options.embedding_in_host_memory && !config_.tie_word_embeddings
                   ? loader.matrix_in_host_memory(embedding, config_.vocab, config_.hidden)
                   : loader.matrix(embedding, config_.vocab, config_.hidden);
  lm_head_ = config_.tie_word_embeddings ? embedding_ : loader.matrix("lm_head.weight", config_.vocab, config_.hidden);
  for (int64_t i = 0; i < config_.layers; ++i) {
    const std::string name = root + ".layers." + std::to_string(i);
    if (std::count(config_.ngram_layers.begin(), config_.ngram_layers.end(), i) > 0) {
      ngram_[i] = std::make_unique<NgramMemory>(config_, name + ".ple", options.ngram, loader, layout);
    }
    layers_.push_back(std::make_unique<DecoderLayer>(
        config_, name, static_cast<int32_t>(i), config_.layer_types[static_cast<size_t>(i)], options, loader, layout));
  }
  if (config_.family == Family::kQwen4Exp) {
    final_mixer_ = load_hyper(config_, root + ".hyper_connection_mixer", false, loader);
  } else {
    final_norm_ = loader.vector(root + ".norm.weight", config_.hidden);
  }
  if (options.draft_head && config_.mtp_layers > 0 && artifact.find("mtp.pre_fc_norm_hidden.weight") != nullptr) {
    draft_ = std::make_unique<DraftHead>(config_, options, loader, layout);
  }
  layout_ = layout.layout();
  weight_bytes_ = loader.bytes();
  memory_ = loader.finish();
}

void Decoder::write_inputs(StepInputs& inputs, std::span<const Part> parts) {
  const auto each = static_cast<int64_t>(parts[0].tokens.size());
  const std::span<ops::Run> runs = inputs.runs(static_cast<int64_t>(parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    const SequenceView& view = parts[i].view;
    if (view.page_count * kPageTokens < view.length + each) {
      base::internal_error("model", "{} pages hold {} tokens, position {} was to be written", view.page_count,
                           view.page_count * kPageTokens, view.length + each - 1);
    }
    runs[i] = {.position = view.length, .tokens = each, .slot = view.slot, .block_table = view.block_table};
    std::copy(parts[i].tokens.begin(), parts[i].tokens.end(), inputs.ids() + static_cast<int64_t>(i) * each);
  }
}

ops::Columns Decoder::columns_of(StepInputs& inputs, const StepShape& shape) const {
  return {.runs = inputs.runs(shape.runs),
          .table = inputs.device_runs(),
          .each = shape.each,
          .reach = shape.reach,
          .advance = shape.advance};
}

void Decoder::read_ngram(StepInputs& inputs, std::span<const Part> parts) {
  float* at = inputs.ngram();
  try {
    for (const auto& [layer, memory] : ngram_) {
      for (const Part& part : parts) {
        memory->read(part.view, part.tokens, at);
        at += static_cast<int64_t>(part.tokens.size()) * memory->floats_per_column();
      }
    }
  } catch (...) {
    device_.finish();  // the first piece still reads this step's inputs
    throw;
  }
}

Step Decoder::make_step(StepMemory& memory, const ops::Columns& columns, std::byte* pages) {
  return {.device = device_,
          .ops = *ops_,
          .arena = memory.arena,
          .columns = columns,
          .tokens = columns.count(),
          .pages = pages,
          .page_bytes = layout_.page_bytes,
          .eps = static_cast<float>(config_.rms_norm_eps),
          .ids = memory.inputs.device_ids(),
          .ngram = memory.inputs.device_ngram(),
          .faults = memory.inputs.device_faults()};
}

void Decoder::check_tokens(std::span<const int32_t> tokens) const {
  if (tokens.empty()) base::internal_error("model", "a forward needs at least one token");
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config_.vocab) {
      base::bad_input("token ids", "{} is outside the vocabulary of {}", token, config_.vocab);
    }
  }
}

void Decoder::check_parts(std::span<const Part> parts, const ForwardRequest& request) const {
  if (parts.empty()) base::internal_error("model", "a forward needs at least one sequence");
  const size_t each = parts[0].tokens.size();
  for (const Part& part : parts) {
    check_tokens(part.tokens);
    if (part.tokens.size() != each) {
      base::internal_error("model", "sequences with {} and {} tokens in one forward", each, part.tokens.size());
    }
  }
  const auto columns = static_cast<int64_t>(parts.size() * each);
  if ((parts.size() > 1 || !request.advance) && columns > ops::kMostFewColumns) {
    base::internal_error("model", "{} columns of {} sequences in one forward, {} is the most", columns, parts.size(),
                         ops::kMostFewColumns);
  }
  if (parts.size() > 1 && wants_inner_states(request)) {
    base::internal_error("model", "inner states are told of one sequence, not of {}", parts.size());
  }
  if (request.keep_logits && wants_inner_states(request)) {
    base::internal_error("model", "logits are kept, or inner states told, not both");
  }
}

void Decoder::check_faults(const ops::Columns& columns, const int32_t* faults) const {
  for (int64_t c = 0; c < columns.count(); ++c) {
    if (faults[c] < 0) continue;
    const ops::Run& run = columns.runs[static_cast<size_t>(c / columns.each)];
    const std::string layer = faults[c] == config_.layers ? "mtp.layers.0" : fmt::format("layer {}", faults[c]);
    base::internal_error(layer, "the experts' numbers left their range at position {}",
                         run.position + c % columns.each);
  }
}

void Decoder::tell_selection(const Step& step, const ops::BlockSelection& selection, ForwardOutput& output) {
  std::vector<int32_t> counts;
  std::vector<int32_t> chosen;
  append(counts, selection.counts, step.tokens);
  append(chosen, selection.blocks, step.tokens * selection.budget);
  auto& rows = output.selected_blocks.emplace_back();
  for (int64_t t = 0; t < step.tokens; ++t) {
    std::vector<int32_t>& blocks = rows.emplace_back();
    const int32_t count = counts[static_cast<size_t>(t)];
    if (count == ops::BlockSelection::kEverything) {
      const int64_t visible = (step.columns.runs[0].position + t + 1) / config_.indexer_ratio;
      for (int64_t b = 0; b < visible; ++b) blocks.push_back(static_cast<int32_t>(b));
    } else {
      const auto first = chosen.begin() + t * selection.budget;
      blocks.assign(first, first + count);
    }
  }
}

void Decoder::run_layer(const Step& step, int64_t layer, Residual& residual, const ForwardRequest& request,
                        ForwardOutput& output) {
  const Arena::Scope scope(step.arena);
  const DecoderLayer& block = *layers_[static_cast<size_t>(layer)];
  const int64_t choices = step.tokens * config_.top_k;
  Routing routing;
  ops::BlockSelection selection;
  LayerCapture capture;
  if (request.routing && config_.moe()) {
    routing = {step.arena.take<int32_t>(choices), step.arena.take<float>(choices)};
    capture.routing = &routing;
  }
  if (request.selection && block.sparse_attention() != nullptr) {
    selection = block.sparse_attention()->take_selection(step);
    capture.selection = &selection;
  }
  block.forward(step, residual, capture);
  if (request.hidden) {
    residual.settle(step, config_);
    append(output.hidden, residual.state, step.tokens * config_.width());
  }
  if (capture.routing != nullptr) {
    append(output.router_ids, routing.ids, choices);
    append(output.router_weights, routing.weights, choices);
  }
  if (capture.selection != nullptr) tell_selection(step, selection, output);
}

void Decoder::run_layers(const Step& step, int64_t begin, int64_t end, Residual& residual,
                         const ForwardRequest& request, ForwardOutput& output) {
  const float* values = step.ngram;  // no layer before the first piece's end takes any
  for (int64_t i = begin; i < end; ++i) {
    if (const auto memory = ngram_.find(i); memory != ngram_.end()) {
      residual.settle(step, config_);
      memory->second->forward(step, values, residual.state);
      values += step.tokens * memory->second->floats_per_column();
    }
    run_layer(step, i, residual, request, output);
  }
}

const float* Decoder::finish(const Step& step, Residual& residual, int64_t rows, const ForwardRequest& request,
                             ForwardOutput& output) {
  // One stream: the draft head takes what follows the final norm, so all tokens need it.
  const bool all = request.draft_hidden && final_norm_ != nullptr;
  const int64_t each = step.columns.each;
  const int64_t count = all ? each : rows;
  if (final_norm_ == nullptr && (request.draft_hidden || count > 0)) residual.settle(step, config_);
  if (request.draft_hidden && final_norm_ == nullptr) {
    append(output.draft_hidden, residual.state, step.tokens * config_.width());
  }
  if (count == 0) return nullptr;
  const auto parts = static_cast<int64_t>(step.columns.runs.size());
  float* inputs = step.arena.take<float>(parts * count * config_.hidden);
  float* last = residual.state + (each - count) * config_.width();
  if (parts > 1 && count < each) {
    residual.settle(step, config_);
    float* gathered = step.arena.take<float>(parts * count * config_.width());
    for (int64_t p = 0; p < parts; ++p) {
      device_.copy(gathered + p * count * config_.width(), last + p * each * config_.width(),
                   count * config_.width() * 4);
    }
    last = gathered;
  }
  if (residual.owes) {
    // Nobody reads the other columns' states any more.
    ops_->add_rms_norm(last, residual.change + (each - count) * config_.hidden, parts * count, config_.hidden,
                       final_norm_, step.eps, inputs);
  } else if (final_norm_ != nullptr) {
    ops_->rms_norm(last, parts * count, 1, config_.hidden, final_norm_, step.eps, inputs);
  } else {
    ops_->hyper_mix(final_mixer_, last, parts * count, config_.streams, config_.hidden, step.eps, inputs, nullptr);
  }
  if (all) append(output.draft_hidden, inputs, count * config_.hidden);
  if (rows == 0) return nullptr;
  float* logits = step.arena.take<float>(parts * rows * config_.vocab);
  ops_->linear(inputs + (count - rows) * config_.hidden, parts * rows, lm_head_, false, logits);
  return logits;
}

const float* Decoder::compute_rest(StepMemory& memory, const Step& step, Residual& residual, int64_t rows,
                                   const ForwardRequest& request, ForwardOutput& output) {
  run_layers(step, first_ngram_layer(), config_.layers, residual, request, output);
  const float* logits = finish(step, residual, rows, request, output);
  const int64_t fault_bytes = step.tokens * static_cast<int64_t>(sizeof(int32_t));
  device_.fetch(memory.answer.data(), step.faults, fault_bytes);
  if (logits == nullptr || request.keep_logits) return logits;
  device_.fetch(memory.answer.data() + fault_bytes, logits,
                static_cast<int64_t>(step.columns.runs.size()) * rows * config_.vocab * 4);
  return logits;
}

// Contexts are rounded up, so that one recording serves many steps; the numbers do not depend on it.
int64_t reach_bucket(int64_t reach) {
  int64_t bucket = 1024;
  while (bucket < reach) bucket *= 2;
  return bucket;
}

void Decoder::make_room(StepMemory& memory, const StepShape& shape) {
  memory.arena.gather();
  if (std::exchange(memory.moves, memory.arena.moves()) != memory.arena.moves()) memory.recordings.clear();
  StepShape& most = memory.most;
  const bool few = &memory == &few_;
  StepShape wanted = shape;
  wanted.runs = 1;
  wanted.each = few ? ops::kMostFewColumns : std::max(shape.columns(), most.each);
  wanted.rows = few ? ops::kMostFewColumns : std::max(shape.rows, most.rows);
  wanted.reach = std::max(shape.reach, most.reach);
  if (wanted.each <= most.each && wanted.rows <= most.rows && wanted.reach <= most.reach) return;
  memory.recordings.clear();
  const int64_t scratch = ops_->scratch_bytes();
  memory.inputs.reserve(wanted.each);
  const int64_t answer_bytes = wanted.each * 4 + wanted.rows * config_.vocab * 4;
  if (memory.answer.bytes() < answer_bytes) memory.answer = device::Buffer::shared(device_, answer_bytes);
  choices_.make_room();
  memory.inputs.runs(1)[0] = {.position = wanted.reach - wanted.each, .tokens = wanted.each};
  ops_->prepare([&] {
    const Arena::Plan plan(memory.arena);
    const ops::Columns columns = columns_of(memory.inputs, wanted);
    const Step step = make_step(memory, columns, nullptr);
    const Arena::Scope scope(step.arena);
    Residual residual = Residual::take(step, config_);
    ForwardOutput none;
    run_layers(step, 0, config_.layers, residual, {}, none);
    choices_.plan(finish(step, residual, wanted.rows, {}, none), wanted.rows);
  });
  // All steps share the operations' scratch memory: where it moved, what was recorded with it is of no use.
  if (ops_->scratch_bytes() != scratch) few_.recordings.clear();
  memory.moves = memory.arena.moves();
  most = wanted;
}

void Decoder::reserve(int64_t reach) {
  const int64_t bucket = reach_bucket(reach);
  make_room(few_, {.each = ops::kMostFewColumns, .rows = ops::kMostFewColumns, .reach = bucket});
  make_room(wide_, {.each = chunk_, .rows = 1, .reach = std::max(bucket, reach_bucket(chunk_))});
}

void Decoder::run_step(std::span<const Part> parts, const ForwardRequest& request, int64_t rows,
                       ForwardOutput& output) {
  StepShape shape{.runs = static_cast<int64_t>(parts.size()),
                  .each = static_cast<int64_t>(parts[0].tokens.size()),
                  .rows = rows,
                  .advance = request.advance,
                  .keep_logits = request.keep_logits && rows > 0,
                  .pages = parts[0].view.pages};
  for (const Part& part : parts) {
    shape.reach = std::max(shape.reach, reach_bucket(part.view.length + shape.each));
    prefetch(part.view, part.tokens);
  }
  StepMemory& memory = memory_of(shape.columns());
  make_room(memory, shape);
  write_inputs(memory.inputs, parts);
  const ops::Columns columns = columns_of(memory.inputs, shape);
  const Step step = make_step(memory, columns, parts[0].view.pages);
  const Arena::Scope scope(step.arena);
  Residual residual;
  const float* logits = nullptr;
  StepPieces pieces{.first =
                        [&] {
                          memory.inputs.upload(columns.count());
                          residual = Residual::take(step, config_);
                          ops_->embed(embedding_, step.ids, step.tokens, config_.streams, residual.state);
                          run_layers(step, 0, first_ngram_layer(), residual, request, output);
                          if (!ngram_.empty()) residual.settle(step, config_);
                        },
                    .second =
                        [&] {
                          memory.inputs.upload_ngram(columns.count());
                          logits = compute_rest(memory, step, residual, rows, request, output);
                        },
                    .between = {}};
  if (!ngram_.empty()) pieces.between = [&] { read_ngram(memory.inputs, parts); };
  if (&memory == &few_ && ops_->recordable() && !wants_inner_states(request)) {
    memory.recordings.run(shape, pieces, logits);
  } else {
    pieces.run();
  }
  if (shape.keep_logits) {
    kept_ = {.memory = &memory, .columns = columns, .logits = logits, .rows = shape.runs * rows};
    return;
  }
  device_.finish();
  const int64_t fault_bytes = columns.count() * 4;
  check_faults(columns, memory.answer.as<int32_t>());
  const auto* fetched = reinterpret_cast<const float*>(memory.answer.data() + fault_bytes);
  output.logits.insert(output.logits.end(), fetched, fetched + shape.runs * rows * config_.vocab);
}

void Decoder::settle() {
  if (kept_.memory == nullptr) base::internal_error("model", "the last forward kept no logits");
  if (std::exchange(kept_.settled, true)) return;
  device_.finish();
  check_faults(kept_.columns, kept_.memory->answer.as<int32_t>());
}

std::span<const float> Decoder::read_logits() {
  if (kept_.memory == nullptr) base::internal_error("model", "the last forward kept no logits");
  const auto count = static_cast<size_t>(kept_.rows * config_.vocab);
  if (kept_.read == nullptr && device_.is_host()) kept_.read = kept_.logits;
  if (kept_.read == nullptr) {
    std::byte* to = kept_.memory->answer.data() + kept_.columns.count() * 4;  // behind the faults
    device_.fetch(to, kept_.logits, static_cast<int64_t>(count) * 4);
    kept_.read = reinterpret_cast<const float*>(to);
  }
  finish_choice();
  return {kept_.read, count};
}

void Decoder::check_choice(std::span<const std::span<const uint64_t>> allowed) const {
  if (kept_.memory == nullptr) base::internal_error("model", "the last forward kept no logits");
  if (kept_.rows > ops::kMostFewColumns || (!allowed.empty() && static_cast<int64_t>(allowed.size()) != kept_.rows)) {
    base::internal_error("model", "{} sets of tokens for {} rows of logits, {} are the most", allowed.size(),
                         kept_.rows, ops::kMostFewColumns);
  }
}

// Waits for what was asked after the forward, and for the forward.
void Decoder::finish_choice() {
  if (kept_.settled) {
    device_.finish();
  } else {
    settle();
  }
}

std::vector<int32_t> Decoder::greedy(int64_t tokens, std::span<const std::span<const uint64_t>> allowed) {
  check_choice(allowed);
  choices_.ask_greedy(kept_.logits, kept_.rows, tokens, allowed);
  finish_choice();
  return choices_.greedy(kept_.rows);
}

std::vector<Model::TopLogits> Decoder::top_logits(int64_t tokens, std::span<const std::span<const uint64_t>> allowed) {
  check_choice(allowed);
  choices_.ask_top_logits(kept_.logits, kept_.rows, tokens, allowed);
  finish_choice();
  return choices_.top_logits(kept_.rows);
}

void Decoder::forward(std::span<const Part> parts, const ForwardRequest& request, ForwardOutput& output) {
  check_parts(parts, request);
  device_.bind_thread();
  // What is written for this forward may still be read by one that nobody waited for.
  if (kept_.memory != nullptr && !kept_.settled) device_.finish();
  kept_ = {};
  output.clear();
  const auto each = static_cast<int64_t>(parts[0].tokens.size());
  if (each <= chunk_ || wants_inner_states(request)) {
    run_step(parts, request, std::min(request.logits, each), output);
    return;
  }
  // Cut on the absolute grid of 64 tokens.
  Part piece = parts[0];
  for (int64_t begin = 0; begin < each;) {
    const int64_t end = std::min(each, (piece.view.length + chunk_) / kPageTokens * kPageTokens - parts[0].view.length);
    piece.tokens = parts[0].tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    const int64_t rows = std::clamp<int64_t>(end - (each - request.logits), 0, end - begin);
    run_step({&piece, 1}, request, rows, output);
    piece.view = piece.view.after(piece.tokens);
    begin = end;
  }
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
  if (draft_ == nullptr) base::bad_input("model", "no draft head was loaded");
  device_.bind_thread();
  if (kept_.memory != nullptr && !kept_.settled) device_.finish();
  kept_ = {};
  check_tokens(request.next_tokens);
  const auto count = static_cast<int64_t>(request.next_tokens.size());
  if (static_cast<int64_t>(request.hidden.size()) != count * config_.width()) {
    base::internal_error("draft", "{} hidden values for {} entries of {}", request.hidden.size(), count,
                         config_.width());
  }
  Part part{view, request.next_tokens};
  part.view.length = request.first;
  StepMemory& memory = memory_of(count);
  const StepShape shape{
      .each = count, .rows = std::min(request.logits, count), .reach = reach_bucket(request.first + count)};
  make_room(memory, shape);
  write_inputs(memory.inputs, {&part, 1});
  memory.inputs.upload(count);
  const ops::Columns columns = columns_of(memory.inputs, shape);
  const Step step = make_step(memory, columns, view.pages);
  const Arena::Scope scope(step.arena);
  float* hidden = step.arena.take<float>(count * config_.width());
  float* next_hidden = step.arena.take<float>(count * config_.width());
  float* embeddings = step.arena.take<float>(count * config_.hidden);
  float* inputs = step.arena.take<float>(count * config_.hidden);
  device_.upload(hidden, request.hidden.data(), count * config_.width() * 4);
  ops_->embed(embedding_, step.ids, count, 1, embeddings);
  draft_->forward(step, hidden, embeddings, next_hidden, inputs);
  output.draft_hidden.clear();
  output.logits.clear();
  append(output.draft_hidden, next_hidden, count * config_.width());
  if (const int64_t rows = shape.rows; rows > 0) {
    float* logits = step.arena.take<float>(rows * config_.vocab);
    ops_->linear(inputs + (count - rows) * config_.hidden, rows, lm_head_, false, logits);
    append(output.logits, logits, rows * config_.vocab);
  }
  std::vector<int32_t> faults;
  append(faults, step.faults, count);
  check_faults(columns, faults.data());
}

}  // namespace

SequenceView SequenceView::after(std::span<const int32_t> tokens) const {
  SequenceView next = *this;
  next.length += static_cast<int64_t>(tokens.size());
  for (const int32_t token : tokens.last(std::min<size_t>(tokens.size(), 2))) next.window = {token, next.window[0]};
  return next;
}

std::unique_ptr<Model> Model::load(const artifact::Artifact& artifact, device::Device& device, base::WorkerPool& pool,
                                   const LoadOptions& options) {
  return load(artifact, device, ops::make_ops(device, pool, ops_options(options)), pool, options);
}

std::unique_ptr<Model> Model::load(const artifact::Artifact& artifact, device::Device& device,
                                   std::unique_ptr<ops::Ops> operations, base::WorkerPool& pool,
                                   const LoadOptions& options) {
  return std::make_unique<Decoder>(artifact, device, std::move(operations), pool, options);
}

ops::OpsOptions ops_options(const LoadOptions& options) {
  return {.round_inputs = options.activations == Activations::kBF16,
          .bf16_experts = options.expert_arithmetic == ExpertArithmetic::kBF16,
          .isa = options.isa,
          .portable = options.portable};
}

}  // namespace tandem::model
