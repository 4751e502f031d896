#include "model/ngram.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::model {

namespace {

constexpr int64_t kMostRows = int64_t{1} << 40;

NgramHash load_hash(const Config& config, const std::string& name, WeightLoader& loader) {
  const int64_t heads = (config.ngram_size - 1) * config.ngram_heads_per_size;
  return {loader.integers(name + ".layer_multipliers", config.ngram_size),
          loader.integers(name + ".ngram_heads_vocab_sizes", heads),
          loader.integers(name + ".ngram_heads_offsets", heads), config.eos_token};
}

std::unique_ptr<experts::NgramTable> open_table(const Config& config, const std::string& name,
                                                const experts::NgramOptions& options, WeightLoader& loader) {
  const artifact::Object& object = loader.artifact().at(name);
  const int64_t heads = (config.ngram_size - 1) * config.ngram_heads_per_size;
  const int64_t width = config.ngram_embed_dim / heads;
  if (object.shape.size() != 2 || object.shape[1] != width) {
    base::bad_input(loader.artifact().folder().string(), "{} does not have rows of {} values", name, width);
  }
  const bool fp8 = object.encoding == artifact::Encoding::kNgramF8E4M3;
  const float scale = fp8 ? loader.scalar(name + ".weight_scale") : 1.0F;
  return std::make_unique<experts::NgramTable>(experts::NgramSource::of(loader.artifact(), object, scale), options);
}

}  // namespace

NgramHash::NgramHash(std::vector<int64_t> multipliers, std::vector<int64_t> sizes, std::vector<int64_t> offsets,
                     int64_t end_token)
    : multipliers_(std::move(multipliers)),
      sizes_(std::move(sizes)),
      offsets_(std::move(offsets)),
      end_token_(end_token) {
  for (size_t h = 0; h < sizes_.size(); ++h) {
    if (sizes_[h] <= 0 || offsets_[h] < 0 || offsets_[h] > kMostRows || sizes_[h] > kMostRows) {
      base::bad_input("n-gram heads", "head {} has {} rows from row {}", h, sizes_[h], offsets_[h]);
    }
    reach_ = std::max(reach_, offsets_[h] + sizes_[h]);
  }
}

void NgramHash::rows(int64_t token, int64_t previous, int64_t before, std::span<int64_t> out) const {
  const int64_t t1 = previous < 0 ? end_token_ : previous;
  const int64_t t2 = before < 0 || t1 == end_token_ ? end_token_ : before;
  // Wrapping products, as the reference computes them in int64.
  const auto product = [&](int64_t id, size_t i) {
    return static_cast<uint64_t>(id) * static_cast<uint64_t>(multipliers_[i]);
  };
  const uint64_t mix2 = product(token, 0) ^ product(t1, 1);
  const uint64_t mix3 = mix2 ^ product(t2, 2);
  const int64_t half = heads() / 2;
  for (int64_t h = 0; h < heads(); ++h) {
    const auto i = static_cast<size_t>(h);
    const auto mix = static_cast<int64_t>(h < half ? mix2 : mix3);
    int64_t row = mix % sizes_[i];
    if (row < 0) row += sizes_[i];
    out[i] = row + offsets_[i];
  }
}

NgramMemory::NgramMemory(const Config& config, const std::string& name, const experts::NgramOptions& options,
                         WeightLoader& loader, LayoutBuilder& layout)
    : config_(config),
      hash_(load_hash(config, name + ".ple_embedding", loader)),
      table_(open_table(config, name + ".ple_embedding.ngram_embedding", options, loader)),
      history_offset_(layout.slot_floats((config.ngram_conv_kernel - 1) * config.ngram_size * config.width())) {
  const int64_t width = config.width();
  weights_.key = loader.matrix(name + ".key_proj.weight", width, config.ngram_embed_dim);
  weights_.value = loader.matrix(name + ".value_proj.weight", config.hidden, config.ngram_embed_dim);
  weights_.norm_key = loader.vector(name + ".norm_key.weight", width);
  weights_.norm_query = loader.vector(name + ".norm_query.weight", width);
  weights_.norm_conv = loader.vector(name + ".norm_conv.weight", width);
  weights_.conv = loader.convolution(name + ".conv1d.weight", width, config.ngram_conv_kernel);
  weights_.kernel = config.ngram_conv_kernel;
  weights_.dilation = config.ngram_size;
  if (hash_.reach() > table_->rows()) {
    base::bad_input(name, "the n-gram heads reach row {}, the table has {}", hash_.reach(), table_->rows());
  }
}

std::vector<int64_t> NgramMemory::rows(const SequenceView& view, std::span<const int32_t> tokens) const {
  const auto token_at = [&](int64_t t) -> int64_t {
    return t >= 0 ? tokens[static_cast<size_t>(t)] : view.window[static_cast<size_t>(-t - 1)];
  };
  const auto heads = static_cast<size_t>(hash_.heads());
  std::vector<int64_t> ids(tokens.size() * heads);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto t = static_cast<int64_t>(i);
    hash_.rows(token_at(t), token_at(t - 1), token_at(t - 2), std::span(ids).subspan(i * heads, heads));
  }
  return ids;
}

void NgramMemory::prefetch(const SequenceView& view, std::span<const int32_t> tokens) const {
  table_->prefetch(rows(view, tokens));
}

void NgramMemory::read(const SequenceView& view, std::span<const int32_t> tokens, float* values) const {
  table_->read(rows(view, tokens), values);
}

void NgramMemory::forward(const Step& step, const float* values, float* state) const {
  step.ops.ngram_memory(step.columns, weights_, values, config_.streams, config_.hidden, step.eps, history_offset_,
                        state);
}

}  // namespace tandem::model
