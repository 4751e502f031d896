// The dense model with its matrices in every published format: converted, proved against its checkpoint, and compared
// with the same weights in FP32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/verify.h"
#include "tests/golden/support.h"
#include "tests/support/reencoded_checkpoint.h"

namespace tandem::golden {
namespace {

using reencode::MatrixForm;

class Formats : public ::testing::TestWithParam<MatrixForm> {};

// Logits of a prompt and of two single steps, so that both ways of multiplying are taken.
std::vector<float> logits_of(const artifact::Artifact& artifact) {
  Loaded loaded(artifact, reference_options());
  const auto ids = Reference("demo-dense.safetensors").ints("tools_call.input_ids");
  context::Sequence sequence = loaded.sequence();
  model::ForwardRequest request;
  request.logits = 8;
  model::ForwardOutput output;
  sequence.forward(std::span(ids).first(ids.size() - 2), request, output);
  std::vector<float> logits = output.logits;
  request.logits = 1;
  for (size_t i = ids.size() - 2; i < ids.size(); ++i) {
    sequence.forward(std::span(ids).subspan(i, 1), request, output);
    logits.insert(logits.end(), output.logits.begin(), output.logits.end());
  }
  return logits;
}

TEST_P(Formats, AreKeptAndComputedAsWhatTheyHold) {
  const auto [encoded, decoded] = reencoded_artifacts(GetParam());
  const convert::Verification found = convert::verify(encoded.artifact, encoded.source, true);
  EXPECT_THAT(found.faults, ::testing::IsEmpty());
  EXPECT_EQ(found.tensors, checkpoint::Checkpoint::open(encoded.source).tensors().size());

  const std::vector<float> got = logits_of(encoded.artifact);
  const std::vector<float> want = logits_of(decoded.artifact);
  switch (GetParam()) {
    case MatrixForm::kFp8Block:
    case MatrixForm::kInt3Words:
    case MatrixForm::kInt3Stream:
    case MatrixForm::kInt4:
    case MatrixForm::kInt8:
    case MatrixForm::kF16:
      // The decoder makes the very weights of the twin, and the sums are those of FP32 weights.
      EXPECT_EQ(got, want);
      break;
    default:
      // A scale of the row or the tensor multiplies the sum instead of each weight: one rounding of 2^-24 a weight, and
      // sums round elsewhere. The references allow 1e-3 for such differences; logits reach 20.
      EXPECT_LE(largest_difference(got, want), 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Published, Formats, ::testing::ValuesIn(reencode::kMatrixForms),
                         [](const auto& form) { return reencode::form_name(form.param); });

}  // namespace
}  // namespace tandem::golden
