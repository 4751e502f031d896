// What models of the published shapes take of a card, planned without their weights.
#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "convert/generated.h"
#include "engine/limits.h"
#include "synth/model.h"

namespace tandem::engine {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

artifact::Artifact published(const char* form, const convert::Choices& choices = {}) {
  synth::Settings settings;
  settings.form = form;
  settings.config = synth::make_config(synth::form_named(form), synth::Scale::kFull, {}, nullptr);
  const auto synthetic = std::make_shared<const synth::Model>(settings);
  return convert::generated_artifact(synth::checkpoint_of(synthetic), {{"config.json", synthetic->config().dump()}},
                                     choices);
}

MemoryPlan plan(const artifact::Artifact& artifact, EngineOptions options, int64_t vram) {
  const device::Card card{.ordinal = 0,
                          .name = "a card",
                          .capability_major = 12,
                          .capability_minor = 0,
                          .multiprocessors = 70,
                          .driver = "",
                          .memory_bytes = vram};
  options.vram_limit = static_cast<uint64_t>(vram);
  const EngineOptions limits = resolve_limits(options, model::Config::from_json(artifact.config(), "config.json"));
  model::LoadOptions load = options.load;
  return fitting_plan(artifact, limits, card, usable_memory(limits, card, vram - kGiB / 2), load);
}

int64_t row(const MemoryPlan& plan, const std::string& name) {
  for (const auto& row : plan.rows) {
    if (row.name == name) return row.bytes;
  }
  return -1;
}

EngineOptions long_context() {
  EngineOptions options;
  options.load.kv_cache = model::KvCache::kInt8;
  options.max_context = 65536;
  options.max_concurrency = 1;
  return options;
}

TEST(MemoryPlan, ThreeBitsOf27BAndALongContextFitIntoSixteenGigabytes) {
  const artifact::Artifact artifact = published("27b-gsq3");
  const MemoryPlan made = plan(artifact, long_context(), 16 * kGiB);
  EXPECT_TRUE(made.fits()) << made.refusal();
  EXPECT_LE(made.total(), 14 * kGiB);
  // The table of embeddings has 248,320 rows of 5,120 BF16 numbers; a larger card has it in its own memory.
  const MemoryPlan large = plan(artifact, long_context(), 24 * kGiB);
  EXPECT_EQ(row(large, "weights") - row(made, "weights"), int64_t{248320} * 5120 * 2);
  // 16 layers: keys and values of 4 heads of 256 in 8 bits with a scale of 16 to 64.
  const int64_t token = 16 * 2 * 4 * (256 + 256 / 64 * 2);
  EXPECT_GE(row(made, "contexts"), 65536 * token);
  EXPECT_LE(row(made, "contexts"), 65536 * token + 200 * (int64_t{1} << 20));
}

// The published output matrix is BF16, 2.5 GB that every step reads.
TEST(MemoryPlan, AnOutputMatrixInEightBitsLeavesMoreOfSixteenGigabytes) {
  const MemoryPlan kept = plan(published("27b-gsq3"), long_context(), 16 * kGiB);
  const MemoryPlan made =
      plan(published("27b-gsq3", {.dense = convert::DensePolicy::kFp8Row}), long_context(), 16 * kGiB);
  // But for what stays free in the blocks that smaller matrices share.
  EXPECT_NEAR(static_cast<double>(row(kept, "weights") - row(made, "weights")), 248320.0 * (5120 - 4), 0.02e9);
  EXPECT_LE(made.total(), 13'900'000'000);
}

TEST(MemoryPlan, TheDraftHeadIsCountedWhereItIsAskedFor) {
  const artifact::Artifact artifact = published("27b-gsq3");
  EngineOptions options = long_context();
  options.load.embedding_in_host_memory = true;
  const MemoryPlan without = plan(artifact, options, 16 * kGiB);
  options.load.draft_head = true;
  const MemoryPlan with = plan(artifact, options, 16 * kGiB);
  // One layer's BF16 matrices and [5120, 10240].
  EXPECT_NEAR(static_cast<double>(row(with, "weights") - row(without, "weights")), 0.85e9, 0.01e9);
  // A seventeenth layer's keys and values.
  EXPECT_EQ(row(with, "contexts") - row(without, "contexts"), 65536 * int64_t{2 * 4 * (256 + 256 / 64 * 2)});
}

// A model that nearly fills the card leaves the table of embeddings outside, though all of it would fit.
TEST(MemoryPlan, TheTableOfEmbeddingsLeavesACardThatIsNearlyFull) {
  const artifact::Artifact artifact = published("27b-gsq3");
  EngineOptions options = long_context();
  const int64_t whole = plan(artifact, options, 48 * kGiB).total();
  const auto at = [&](int64_t usable) { return plan(artifact, options, usable + kGiB / 2).total(); };
  EXPECT_EQ(at(whole * 10 / 9 + 100), whole);
  EXPECT_EQ(at(whole * 10 / 9 - 100), whole - int64_t{248320} * 5120 * 2);
}

// What a step works in does not grow with the number of layers.
TEST(MemoryPlan, StepsOf512ColumnsTakeLessThanOneLayersWeights) {
  const MemoryPlan made = plan(published("27b-nvfp4"), long_context(), 32 * kGiB);
  EXPECT_GT(row(made, "steps"), 0);
  EXPECT_LE(row(made, "steps"), int64_t{400} << 20);
}

TEST(MemoryPlan, WhatDoesNotFitIsRefusedWithItsParts) {
  const MemoryPlan made = plan(published("27b-nvfp4"), long_context(), 16 * kGiB);
  EXPECT_FALSE(made.fits());
  for (const char* part : {"weights", "contexts", "steps", "recordings"}) {
    EXPECT_NE(made.refusal().find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace tandem::engine
