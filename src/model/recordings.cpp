#include "model/recordings.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "model/model.h"

namespace tandem::model {

void StepPieces::run() const {
  first();
  if (between) between();
  second();
}

std::vector<std::unique_ptr<device::Recording>> Recordings::record(const StepPieces& pieces) {
  std::vector<std::unique_ptr<device::Recording>> recorded;
  const auto add = [&](const std::function<void()>& piece) {
    if (auto recording = device_.record(piece)) recorded.push_back(std::move(recording));
  };
  try {
    if (pieces.between) {
      add(pieces.first);
      add(pieces.second);
    } else {
      add([&] { pieces.run(); });
    }
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::kUnavailable) throw;
    spdlog::warn("a step is not recorded, and takes longer: {}", error.what());
    recorded.clear();
  }
  return recorded;
}

void Recordings::run(const StepShape& shape, const StepPieces& pieces, const float*& logits) {
  const auto found = recorded_.find(shape);
  if (found == recorded_.end()) {
    pieces.run();
    if (static_cast<int64_t>(recorded_.size()) >= kMostRecordings) recorded_.clear();
    recorded_.try_emplace(shape);
    return;
  }
  Recorded& recorded = found->second;
  if (recorded.pieces.empty() && !recorded.refused) {
    recorded.pieces = record(pieces);
    recorded.logits = logits;
    recorded.refused = recorded.pieces.empty();
  }
  if (recorded.refused) return pieces.run();
  recorded.pieces.front()->run();
  if (recorded.pieces.size() > 1) {
    pieces.between();
    recorded.pieces.back()->run();
  }
  logits = recorded.logits;
}

}  // namespace tandem::model
