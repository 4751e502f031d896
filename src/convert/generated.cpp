#include "convert/generated.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace tandem::convert {

namespace {

// Makes objects piece by piece. Readers go through an object in order and in pieces of their own, so that the chunk
// that was made last is often needed once more.
class PieceMaker {
 public:
  PieceMaker(checkpoint::Checkpoint checkpoint, std::vector<Text> texts, const Choices& choices)
      : checkpoint_(std::move(checkpoint)), plans_(plan_published(checkpoint_, std::move(texts), choices)) {
    for (const auto& plan : plans_) by_name_.emplace(plan->object().name, plan.get());
  }

  const Plans& plans() const { return plans_; }

  void read(const artifact::Object& object, uint64_t offset, std::span<std::byte> out) {
    const ObjectPlan& plan = *by_name_.at(object.name);
    while (!out.empty()) {
      const uint64_t chunk = offset / plan.chunk_bytes();
      const uint64_t begin = offset % plan.chunk_bytes();
      const uint64_t size = plan.chunk_size(chunk);
      const uint64_t count = std::min<uint64_t>(size - begin, out.size());
      if (count == size) {
        plan.make(checkpoint_, chunk, out.first(count));
      } else {
        copy(plan, chunk, begin, out.first(count));
      }
      offset += count;
      out = out.subspan(count);
    }
  }

 private:
  void copy(const ObjectPlan& plan, uint64_t chunk, uint64_t begin, std::span<std::byte> out) {
    const std::lock_guard lock(mutex_);
    if (last_plan_ != &plan || last_chunk_ != chunk) {
      last_plan_ = nullptr;
      last_.resize(plan.chunk_size(chunk));
      plan.make(checkpoint_, chunk, last_);
      last_plan_ = &plan;
      last_chunk_ = chunk;
    }
    std::memcpy(out.data(), last_.data() + begin, out.size());
  }

  checkpoint::Checkpoint checkpoint_;
  Plans plans_;
  std::unordered_map<std::string, const ObjectPlan*> by_name_;
  std::mutex mutex_;
  std::vector<std::byte> last_;
  const ObjectPlan* last_plan_ = nullptr;
  uint64_t last_chunk_ = 0;
};

base::File table_in_memory(PieceMaker& maker, const artifact::Object& object) {
  base::File file = base::File::in_memory(object.name, object.bytes);
  std::vector<std::byte> piece;
  for (uint64_t at = 0; at < object.bytes; at += piece.size()) {
    piece.resize(std::min(object.bytes - at, kChunkBytes));
    maker.read(object, at, piece);
    file.write_at(at, piece);
  }
  return file;
}

}  // namespace

artifact::Artifact generated_artifact(checkpoint::Checkpoint checkpoint, std::vector<Text> texts,
                                      const Choices& choices) {
  const std::string label = checkpoint.folder().string();
  const auto maker = std::make_shared<PieceMaker>(std::move(checkpoint), std::move(texts), choices);
  std::vector<artifact::Object> objects;
  std::vector<base::File> parts;
  for (const auto& plan : maker->plans()) {
    artifact::Object& object = objects.emplace_back(plan->object());
    if (!artifact::is_ngram(object.encoding)) continue;
    object.part = static_cast<uint32_t>(parts.size());
    object.offset = 0;
    parts.push_back(table_in_memory(*maker, object));
  }
  return artifact::Artifact::generated(label, std::move(objects), std::move(parts),
                                       [maker](const artifact::Object& object, uint64_t offset,
                                               std::span<std::byte> out) { maker->read(object, offset, out); });
}

}  // namespace tandem::convert
