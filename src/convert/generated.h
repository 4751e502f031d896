// A checkpoint as the artifact that it would be converted to, without writing it: each piece of an object is made when
// it is read, by the plans that conversion uses. For models of synthetic weights, which have no files.
#pragma once

#include <vector>

#include "artifact/artifact.h"
#include "checkpoint/checkpoint.h"
#include "convert/recipe.h"

namespace tandem::convert {

// Rows of n-gram tables are made at once and kept in memory. Throws what plan_published throws.
artifact::Artifact generated_artifact(checkpoint::Checkpoint checkpoint, std::vector<Text> texts,
                                      const Choices& choices = {});

}  // namespace tandem::convert
