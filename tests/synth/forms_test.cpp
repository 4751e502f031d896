#include "synth/forms.h"

#include <algorithm>
#include <gmock/gmock.h>

#include "base/error.h"
#include "synth/model.h"

namespace tandem::synth {
namespace {

Settings full(const char* form) {
  Settings settings;
  settings.form = form;
  settings.scale = Scale::kFull;
  return settings;
}

std::vector<int64_t> integers(const Model& model, const std::string& suffix) {
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    if (!model.tensors()[i].name.ends_with(suffix)) continue;
    std::vector<int64_t> values(static_cast<size_t>(model.tensors()[i].shape.front()));
    model.make(i, 0, std::as_writable_bytes(std::span(values)));
    return values;
  }
  return {};
}

TEST(Forms, FullSizesHaveThePublishedTensors) {
  EXPECT_EQ(Model(full("flash-nvfp4")).tensors().size(), 299'545U);
  EXPECT_EQ(Model(full("flash-fp8")).tensors().size(), 152'089U);
  const Model bf16(full("flash-bf16"));
  EXPECT_EQ(bf16.tensors().size(), 1'658U);
  EXPECT_EQ(bf16.bytes(), 2 * uint64_t{179'999'981'424} + 8 * uint64_t{35});
}

TEST(Forms, TheNgramConstantsAreThePublishedOnes) {
  const Model model(full("flash-bf16"));
  EXPECT_EQ(integers(model, "layer_multipliers"),
            (std::vector<int64_t>{23703573157769, 20109073645365, 8052911324071}));
  const auto rows = integers(model, "ngram_heads_vocab_sizes");
  ASSERT_EQ(rows.size(), 16U);
  EXPECT_EQ(rows.front(), 20000003);
  EXPECT_EQ(rows.back(), 20000171);
  const auto offsets = integers(model, "ngram_heads_offsets");
  EXPECT_EQ(offsets[0], 0);
  EXPECT_EQ(offsets[2], 40000026);
  EXPECT_EQ(model.config()["text_config"]["eos_token_id"], 248044);
}

TEST(Forms, SizesReplaceThoseOfTheScale) {
  Settings settings;
  settings.form = "flash-bf16";
  settings.sizes.layers = 8;
  settings.sizes.experts = 12;
  settings.sizes.vocab = 4096;
  const Model model(settings);
  const base::Json& text = model.config()["text_config"];
  EXPECT_EQ(text["num_hidden_layers"], 8);
  EXPECT_EQ(text["num_experts"], 12);
  EXPECT_EQ(text["vocab_size"], 4096);
}

TEST(Forms, AConfigCanBeGiven) {
  Settings settings;
  settings.form = "27b-bf16";
  settings.config = make_config(form_named("27b-bf16"), Scale::kTiny, {}, nullptr);
  settings.config["text_config"]["num_hidden_layers"] = 5;
  EXPECT_EQ(Model(settings).config()["text_config"]["num_hidden_layers"], 5);
  settings.form = "flash-bf16";
  EXPECT_THROW(Model{settings}, base::Error);
}

TEST(Forms, RefusesWhatNoModelCanHave) {
  EXPECT_THROW(form_named("flash-int1"), base::Error);
  Settings settings;
  settings.form = "27b-bf16";
  settings.sizes.experts = 4;
  EXPECT_THROW(Model{settings}, base::Error) << "a dense model has no experts";
  settings.sizes = {};
  settings.sizes.hidden = 0;
  EXPECT_THROW(Model{settings}, base::Error);
  settings.sizes = {};
  settings.router_skew = -1;
  EXPECT_THROW(Model{settings}, base::Error);
}

}  // namespace
}  // namespace tandem::synth
