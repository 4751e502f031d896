// From a published checkpoint to the objects of its artifact.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "convert/object_plan.h"

namespace tandem::convert {

inline constexpr const char* kRecipePublished = "published";

// A small file of the checkpoint.
struct Text {
  std::string name;
  std::string content;
};

// The recipe "published": every tensor keeps its format. First the texts, then the objects in the order in which their
// last source shard is needed, so that shards can be given up one after the other.
//   routed experts of a layer     one object named as their module, one record an expert; NVFP4 scalars in NAME.scalars
//   shards of the n-gram table    one object named as their module
//   every other tensor            one object under its own name
// Throws base::Error{kBadInput} that names the tensor where experts or shards are missing, have another shape than
// their siblings, or come in a form that is not known. The checkpoint must outlive the plans.
Plans plan_published(const checkpoint::Checkpoint& checkpoint, std::vector<Text> texts);

}  // namespace tandem::convert
