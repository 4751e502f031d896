#include "convert/generated.h"

#include <cstring>
#include <gtest/gtest.h>
#include <memory>

#include "base/error.h"
#include "context/sequence.h"
#include "convert/convert.h"
#include "synth/model.h"
#include "synth/write.h"
#include "tests/artifact/temp_folder.h"

namespace tandem::synth {
namespace {

std::vector<float> logits_of(const artifact::Artifact& artifact) {
  base::WorkerPool pool(1);
  const auto model = model::Model::load(artifact, device::host(), pool, {});
  context::SequencePool sequences(*model, 128, 1);
  auto sequence = sequences.create();
  const std::vector<int32_t> tokens = {3, 1000, 14, 15, 92, 65, 35, 89, 79};
  model::ForwardOutput output;
  model::ForwardRequest request;
  request.logits = static_cast<int64_t>(tokens.size());
  sequence.forward(tokens, request, output);
  return output.logits;
}

artifact::Artifact generated(const Settings& settings) {
  const auto model = std::make_shared<const Model>(settings);
  return convert::generated_artifact(checkpoint_of(model), {{"config.json", model->config().dump()}});
}

TEST(Generated, AModelInMemoryIsThatOfTheFiles) {
  for (const char* form : {"flash-nvfp4", "flash-bf16", "27b-bf16"}) {
    const testing::TempFolder folder;
    Settings settings;
    settings.form = form;
    settings.seed = 5;
    WriteOptions quiet;
    quiet.quiet = true;
    write_checkpoint(Model(settings), folder / "checkpoint", quiet);
    convert::Options options;
    options.quiet = true;
    convert::convert(folder / "checkpoint", folder / "a.tandem", options);
    const auto files = logits_of(artifact::Artifact::open(folder / "a.tandem"));
    const auto memory = logits_of(generated(settings));
    ASSERT_EQ(files.size(), memory.size());
    EXPECT_EQ(std::memcmp(files.data(), memory.data(), files.size() * sizeof(float)), 0) << form;
  }
}

TEST(Generated, AnyPieceOfAnObjectIsThatOfTheWhole) {
  const auto artifact = generated({});
  for (const artifact::Object& object : artifact.objects()) {
    if (object.bytes < 5000 || artifact::is_ngram(object.encoding)) continue;
    const auto whole = artifact.read(object);
    std::vector<std::byte> piece(3001);
    artifact.read(object, 1234, piece);
    ASSERT_EQ(std::memcmp(piece.data(), whole.data() + 1234, piece.size()), 0) << object.name;
    EXPECT_THROW(artifact.read(object, object.bytes - 10, piece), base::Error);
  }
}

}  // namespace
}  // namespace tandem::synth
