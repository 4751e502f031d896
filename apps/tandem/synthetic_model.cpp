#include "synthetic_model.h"

#include <random>
#include <utility>

#include "convert/generated.h"

namespace tandem::app {

synth::Settings without_extras(synth::Settings settings) {
  const synth::NamedForm& form = synth::form_named(settings.form);
  base::Json config = synth::make_config(form, synth::Scale::kFull, settings.sizes, nullptr);
  config.erase("vision_config");
  config["language_model_only"] = true;
  config["text_config"]["mtp_num_hidden_layers"] = 0;
  settings.sizes = {};
  settings.config = std::move(config);
  return settings;
}

artifact::Artifact synthetic_artifact(const std::shared_ptr<const synth::Model>& model) {
  return convert::generated_artifact(synth::checkpoint_of(model), {{"config.json", model->config().dump()}});
}

TokenBytes bytes_of_token(const artifact::Artifact& artifact, const model::Config& config) {
  TokenBytes bytes;
  for (const artifact::Object& object : artifact.objects()) {
    if (object.encoding == artifact::Encoding::kText || artifact::is_ngram(object.encoding)) continue;
    if (artifact::is_experts(object.encoding) || object.name.ends_with(".experts.scalars")) {
      bytes.expert += object.bytes / static_cast<uint64_t>(config.experts);
    } else if (object.name.ends_with("embed_tokens.weight") && !config.tie_word_embeddings) {
      bytes.dense += object.bytes / static_cast<uint64_t>(config.vocab);
    } else {
      bytes.dense += object.bytes;
    }
  }
  bytes.experts = bytes.expert * static_cast<uint64_t>(config.top_k);
  return bytes;
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return tokens;
}

}  // namespace tandem::app
