// `tandem score`: what the model computes for given tokens, as tensors (docs/score.md).
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors_writer.h"
#include "commands.h"
#include "context/sequence.h"
#include "engine/loaded_model.h"
#include "options.h"
#include "token_file.h"

namespace tandem::app {
namespace {

struct ScoreOptions {
  engine::EngineOptions engine;
  std::filesystem::path ids;
  std::filesystem::path out;
  int64_t last = 1;
  int64_t chunk = 512;
  bool hidden = false;
  bool routing = false;
};

// Rows of the last `last` positions, gathered from the chunks in which they were computed. Tensors of [layers, n, ...]
// get their rows chunk by chunk, so each layer is filled at its own place.
template <typename T>
class Rows {
 public:
  Rows(int64_t layers, int64_t rows, int64_t width)
      : rows_(rows), width_(width), values_(static_cast<size_t>(layers * rows * width)) {}

  // `chunk` is [layers, tokens, width]; its last `count` rows become rows [first, first + count).
  void fill(std::span<const T> chunk, int64_t tokens, int64_t first, int64_t count) {
    const int64_t layers = rows_ * width_ == 0 ? 0 : static_cast<int64_t>(values_.size()) / (rows_ * width_);
    if (static_cast<int64_t>(chunk.size()) != layers * tokens * width_) {
      base::internal_error("score", "the model gave {} values where {} were asked for", chunk.size(),
                           layers * tokens * width_);
    }
    for (int64_t layer = 0; layer < layers; ++layer) {
      const auto from = chunk.begin() + (layer * tokens + tokens - count) * width_;
      std::copy(from, from + count * width_, values_.begin() + (layer * rows_ + first) * width_);
    }
  }
  std::span<T> values() { return values_; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(values_)); }

 private:
  int64_t rows_;
  int64_t width_;
  std::vector<T> values_;
};

struct Scores {
  Scores(const ScoreOptions& options, const model::Config& config, int64_t tokens)
      : rows(std::min(options.last, tokens)),
        attention_layers(std::count(config.layer_types.begin(), config.layer_types.end(), model::LayerType::kFull)),
        blocks(options.routing && config.sparse() ? tokens / config.indexer_ratio : 0),
        logits(1, rows, config.vocab),
        hidden(options.hidden ? config.layers : 0, rows, config.width()),
        router_ids(options.routing && config.moe() ? config.layers : 0, rows, config.top_k),
        router_weights(options.routing && config.moe() ? config.layers : 0, rows, config.top_k),
        selected(attention_layers, rows, blocks) {}

  // Marks the blocks that the last `count` tokens of a chunk selected: [attention layers][tokens] lists.
  void mark_selected(const std::vector<std::vector<std::vector<int32_t>>>& lists, int64_t first, int64_t count) {
    for (size_t layer = 0; layer < lists.size(); ++layer) {
      const auto& tokens = lists[layer];
      for (int64_t i = 0; i < count; ++i) {
        const size_t row = layer * static_cast<size_t>(rows) + static_cast<size_t>(first + i);
        for (const int32_t block : tokens.at(tokens.size() - static_cast<size_t>(count - i))) {
          selected.values()[row * static_cast<size_t>(blocks) + static_cast<size_t>(block)] = 1;
        }
      }
    }
  }

  int64_t rows;
  int64_t attention_layers;
  int64_t blocks;
  Rows<float> logits;          // [n, vocab]
  Rows<float> hidden;          // [layers, n, width]
  Rows<int32_t> router_ids;    // [layers, n, k]
  Rows<float> router_weights;  // [layers, n, k]
  Rows<uint8_t> selected;      // [attention layers, n, blocks]
};

// Runs the model over the tokens in chunks and keeps what was asked for.
Scores compute(const ScoreOptions& options, model::Model& model, const std::vector<int32_t>& ids) {
  const model::Config& config = model.config();
  const auto tokens = static_cast<int64_t>(ids.size());
  Scores scores(options, config, tokens);
  context::SequencePool sequences(model, tokens, 1);
  context::Sequence sequence = sequences.create();
  model::ForwardOutput output;
  for (int64_t begin = 0; begin < tokens; begin += options.chunk) {
    const int64_t length = std::min(options.chunk, tokens - begin);
    const int64_t kept_from = std::max(begin, tokens - scores.rows);
    const int64_t count = std::max<int64_t>(begin + length - kept_from, 0);
    const bool kept = count > 0;
    model::ForwardRequest request;
    request.logits = count;
    request.hidden = kept && options.hidden;
    request.routing = kept && options.routing && config.moe();
    request.selection = kept && scores.blocks > 0;
    sequence.forward(std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(length)), request, output);
    if (!kept) continue;
    const int64_t first = kept_from - (tokens - scores.rows);
    scores.logits.fill(output.logits, count, first, count);
    if (request.hidden) scores.hidden.fill(output.hidden, length, first, count);
    if (request.routing) {
      scores.router_ids.fill(output.router_ids, length, first, count);
      scores.router_weights.fill(output.router_weights, length, first, count);
    }
    if (request.selection) scores.mark_selected(output.selected_blocks, first, count);
  }
  return scores;
}

void write(const ScoreOptions& options, const model::Config& config, const Scores& scores) {
  using checkpoint::Dtype;
  std::vector<checkpoint::TensorData> tensors = {
      {.name = "logits", .dtype = Dtype::kF32, .shape = {scores.rows, config.vocab}, .bytes = scores.logits.bytes()}};
  if (options.hidden) {
    tensors.push_back({.name = "hidden",
                       .dtype = Dtype::kF32,
                       .shape = {config.layers, scores.rows, config.width()},
                       .bytes = scores.hidden.bytes()});
  }
  if (options.routing && config.moe()) {
    const std::vector<int64_t> shape = {config.layers, scores.rows, config.top_k};
    tensors.push_back({.name = "router_ids", .dtype = Dtype::kI32, .shape = shape, .bytes = scores.router_ids.bytes()});
    tensors.push_back(
        {.name = "router_weights", .dtype = Dtype::kF32, .shape = shape, .bytes = scores.router_weights.bytes()});
  }
  if (options.routing && config.sparse()) {
    tensors.push_back({.name = "selected_blocks",
                       .dtype = Dtype::kU8,
                       .shape = {scores.attention_layers, scores.rows, scores.blocks},
                       .bytes = scores.selected.bytes()});
  }
  checkpoint::write_safetensors(options.out, tensors);
}

void score(const ScoreOptions& options) {
  if (options.last < 1) base::bad_input("--last", "{} is below 1", options.last);
  if (options.chunk < 1) base::bad_input("--chunk", "{} is below 1", options.chunk);
  const std::vector<int32_t> ids = read_token_ids(options.ids);
  const engine::LoadedModel loaded = engine::load_model(options.engine);
  const model::Config& config = loaded.model->config();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= config.vocab) {
      base::bad_input(options.ids.string(), "element {} is {}, the model's vocabulary has {} tokens", i, ids[i],
                      config.vocab);
    }
  }
  write(options, config, compute(options, *loaded.model, ids));
}

}  // namespace

void add_score(CLI::App& app) {
  const auto options = std::make_shared<ScoreOptions>();
  CLI::App* command = app.add_subcommand("score", "Write what the model computes for given tokens, as tensors");
  add_model_options(*command, options->engine);
  per_call(command->add_option("--ids", options->ids, "The tokens: a file with a JSON array of ids"))
      ->required()
      ->type_name("FILE");
  per_call(command->add_option("--out", options->out, "The safetensors file to write"))->required()->type_name("FILE");
  per_call(command->add_option("--last", options->last, "Positions to write, counted from the end"))
      ->capture_default_str();
  per_call(command->add_flag("--hidden", options->hidden, "Also the residual state after every layer"));
  per_call(command->add_flag("--routing", options->routing, "Also the router's and the sparse attention's choices"));
  per_call(command->add_option("--chunk", options->chunk, "Tokens that are computed in one pass"))
      ->capture_default_str();
  command->footer(
      "Writes logits [n, vocab] and, where asked for, hidden [layers, n, width], router_ids and router_weights\n"
      "[layers, n, k], selected_blocks [attention layers, n, blocks]; docs/score.md describes them.\n\n"
      "Example:\n"
      "  echo '[4064, 198, 9]' > ids.json\n"
      "  tandem score demo-flash.tandem --ids ids.json --out scores.safetensors --last 2 --hidden");
  command->callback([options] { score(*options); });
}

}  // namespace tandem::app
