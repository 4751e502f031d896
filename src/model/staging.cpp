// Brings what is read from an artifact to a card by way of page-locked memory.
#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>

#include "base/units.h"
#include "model/weights.h"

namespace tandem::model {

namespace {

// A card copies at full speed only what is several MiB long; yet page-locking takes 0.2 s for a gigabyte, and what is
// on its way should stay in the processor's cache. So several threads fill what is sent on together.
constexpr size_t kParts = 4;
constexpr size_t kPiecesOfBatch = 16;
constexpr size_t kGeneratedPiecesOfBatch = 4;  // they are larger, and take longer to make than to copy
constexpr int64_t kPieceAlignment = 4096;

}  // namespace

// Pieces are taken in their order, and batches of them have the parts of the memory in turn.
class WeightLoader::Staging {
 public:
  Staging(WeightLoader& loader, std::span<const Piece> pieces) : loader_(loader), pieces_(pieces) {
    int64_t largest = 0;
    for (const Piece& piece : pieces) largest = std::max(largest, piece.bytes);
    each_ = static_cast<int64_t>(base::round_up(static_cast<uint64_t>(largest), kPieceAlignment));
    const size_t most = loader.artifact_.generated() ? kGeneratedPiecesOfBatch : kPiecesOfBatch;
    pieces_of_batch_ = std::min(most, pieces.size());
    device::Device& device = loader.device_;
    memory_ = device::Buffer::shared(device, static_cast<int64_t>(kParts * pieces_of_batch_) * each_);
    for (size_t i = 0; i < kParts; ++i) parts_[i] = {.batch = i, .left = size_of(i), .arrived = device.make_mark()};
  }

  void run() {
    const auto threads = static_cast<int64_t>(loader_.pool_.threads());
    try {
      loader_.pool_.run(threads, 1, [&](int64_t, int64_t) { work(); });
    } catch (...) {
      loader_.device_.finish();  // it still reads the memory that goes away
      throw;
    }
    loader_.device_.finish();
  }

 private:
  // Of the memory.
  struct Part {
    size_t batch = 0;                       // which has it now
    size_t left = 0;                        // pieces of it that are not read yet
    std::unique_ptr<device::Mark> arrived;  // the batch before
  };

  size_t size_of(size_t batch) const {
    const size_t begin = batch * pieces_of_batch_;
    return begin < pieces_.size() ? std::min(pieces_of_batch_, pieces_.size() - begin) : 0;
  }

  std::byte* place_of(size_t piece) {
    return memory_.data() + static_cast<int64_t>(piece % (kParts * pieces_of_batch_)) * each_;
  }

  // Until no piece is left; in every thread.
  void work() {
    try {
      loader_.device_.bind_thread();
      std::unique_lock lock(mutex_);
      while (next_ < pieces_.size()) {
        const size_t i = next_++;
        const size_t batch = i / pieces_of_batch_;
        Part& part = parts_[batch % kParts];
        turned_.wait(lock, [&] { return part.batch == batch || failed_; });
        if (failed_) return;
        lock.unlock();
        part.arrived->wait();
        Piece staged = pieces_[i];
        staged.to = place_of(i);
        loader_.read_piece(staged);
        lock.lock();
        if (--part.left == 0) send(part);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failed_ = true;
      next_ = pieces_.size();
      turned_.notify_all();
      throw;
    }
  }

  // An object's pieces that lie side by side are one copy.
  void send(Part& part) {
    const size_t begin = part.batch * pieces_of_batch_;
    const size_t end = begin + size_of(part.batch);
    for (size_t i = begin; i < end;) {
      const size_t first = i;
      int64_t bytes = 0;
      do {
        bytes += pieces_[i].bytes;
        ++i;
      } while (i < end && pieces_[i].object == pieces_[first].object && place_of(i) == place_of(first) + bytes);
      loader_.device_.upload(pieces_[first].to, place_of(first), bytes);
    }
    part.arrived->set();
    part.batch += kParts;
    part.left = size_of(part.batch);
    turned_.notify_all();
  }

  WeightLoader& loader_;
  const std::span<const Piece> pieces_;
  size_t pieces_of_batch_ = 1;
  int64_t each_ = 0;  // bytes of the memory for a piece
  device::Buffer memory_;
  std::mutex mutex_;  // of the device and what follows
  std::condition_variable turned_;
  std::array<Part, kParts> parts_;
  size_t next_ = 0;  // of the pieces
  bool failed_ = false;
};

void WeightLoader::upload_pieces(std::span<const Piece> pieces) {
  if (!pieces.empty()) Staging(*this, pieces).run();
}

}  // namespace tandem::model
