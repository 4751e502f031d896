#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <liburing.h>
#include <optional>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "device/buffer.h"
#include "experts/row_fetcher.h"

namespace tandem::experts {

namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kWake = ~uint64_t{0};  // user data of the poll that new work ends

// One thread owns the ring; an eventfd wakes it when the store has work. Blocks are read into staging memory, of which
// the store takes the rows.
class UringFetcher final : public RowFetcher {
 public:
  UringFetcher(RowStore& store, const RowPlace& place, const FetcherOptions& options)
      : store_(store), place_(place), depth_(std::clamp(options.depth, 1, 4096)) {
    if (options.direct) direct_ = place.file->reopen_direct();
  }

  // False, with the reason, where the kernel refuses.
  bool start(std::string& reason) {
    event_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_ < 0) {
      reason = fmt::format("no eventfd: {}", std::strerror(errno));
      return false;
    }
    // Completions are then taken in where the ring's own thread waits for them, and interrupt it nowhere else; kernels
    // before 6.1 do not know how. Such a ring belongs to the thread that enables it.
    const auto entries = static_cast<unsigned>(depth_) + 1;
    int refused = io_uring_queue_init(
        entries, &ring_, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED);
    must_enable_ = refused == 0;
    if (refused == -EINVAL) refused = io_uring_queue_init(entries, &ring_, 0);
    if (refused < 0) {
      reason = fmt::format("the kernel refuses a ring: {}", std::strerror(-refused));
      return false;
    }
    has_ring_ = true;
    staging_ = device::Buffer(static_cast<int64_t>(depth_) * static_cast<int64_t>(kBlock));
    flights_.resize(static_cast<size_t>(depth_));
    for (int i = depth_; i-- > 0;) idle_.push_back(static_cast<uint32_t>(i));
    store_.on_wanted([event = event_] {
      const uint64_t one = 1;
      // It fails only where the counter is full, and then the thread is awake.
      [[maybe_unused]] const ssize_t put = ::write(event, &one, sizeof one);
    });
    thread_ = std::thread([this] { run(); });
    return true;
  }

  ~UringFetcher() override {
    if (thread_.joinable()) {
      store_.stop();
      thread_.join();
    }
    store_.on_wanted({});
    if (has_ring_) io_uring_queue_exit(&ring_);
    if (event_ >= 0) ::close(event_);
  }

  std::string description() const override {
    return fmt::format("io_uring, {}, {} in flight", direct_ ? "direct" : "through the page cache", depth_);
  }

 private:
  void run() {
    // By the call itself: liburing 2.3 declares its function for this and does not export it.
    if (must_enable_ &&
        ::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) < 0) {
      return give_up(-errno);
    }
    watch_event();
    while (!store_.stopped() || busy() > 0) {
      submit_wanted();
      const int result = io_uring_submit_and_wait(&ring_, 1);
      if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) {
        give_up(result);
        return;
      }
      reap();
    }
  }

  size_t busy() const { return flights_.size() - idle_.size(); }

  void watch_event() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_poll_add(entry, event_, POLLIN);
    io_uring_sqe_set_data64(entry, kWake);
  }

  void submit_wanted() {
    if (idle_.empty()) return;
    store_.take(idle_.size(), false, wanted_);
    const int descriptor = direct_ ? direct_->descriptor() : place_.file->descriptor();
    for (const RowStore::Wanted& wanted : wanted_) {
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // the queue has room for the whole depth and the poll
      const uint32_t flight = idle_.back();
      idle_.pop_back();
      flights_[flight] = wanted;
      io_uring_prep_read(entry, descriptor, block(flight), kBlock, place_.of(wanted.row) / kBlock * kBlock);
      io_uring_sqe_set_data64(entry, flight);
    }
  }

  void reap() {
    fetched_.clear();
    std::array<io_uring_cqe*, 64> done{};
    for (;;) {
      const unsigned count = io_uring_peek_batch_cqe(&ring_, done.data(), done.size());
      for (unsigned i = 0; i < count; ++i) take_in(*done[i]);
      io_uring_cq_advance(&ring_, count);
      if (count < done.size()) break;
    }
    store_.finish(fetched_);
    idle_.insert(idle_.end(), landed_.begin(), landed_.end());
    landed_.clear();
  }

  void take_in(const io_uring_cqe& done) {
    const uint64_t data = io_uring_cqe_get_data64(&done);
    if (data == kWake) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = ::read(event_, &count, sizeof count);
      watch_event();
      return;
    }
    const auto flight = static_cast<uint32_t>(data);
    land(flight, done.res == static_cast<int>(kBlock));
  }

  // A short or failed read is tried again the plain way, which succeeds or says exactly what is wrong.
  void land(uint32_t flight, bool whole) {
    const RowStore::Wanted& wanted = flights_[flight];
    std::byte* bytes = block(flight) + place_.of(wanted.row) % kBlock;
    std::string error;
    if (!whole) error = read_plainly(place_, wanted.row, {bytes, static_cast<size_t>(place_.row_bytes)});
    fetched_.push_back({wanted.slot, error.empty() ? bytes : nullptr, std::move(error)});
    landed_.push_back(flight);
  }

  // The ring no longer works. The kernel may still write to the staging memory, which therefore is not used again.
  void give_up(int result) {
    const std::string error =
        fmt::format("{}: io_uring failed: {}", place_.file->path().string(), std::strerror(-result));
    std::vector<bool> idle(flights_.size());
    for (const uint32_t flight : idle_) idle[flight] = true;
    fetched_.clear();
    for (uint32_t i = 0; i < flights_.size(); ++i) {
      if (!idle[i]) fetched_.push_back({flights_[i].slot, nullptr, error});
    }
    store_.finish(fetched_);
    std::vector<std::byte> row(static_cast<size_t>(place_.row_bytes));
    for (;;) {
      store_.take(1, true, wanted_);
      if (wanted_.empty()) return;
      std::string fault = read_plainly(place_, wanted_.front().row, row);
      const RowStore::Fetched one{wanted_.front().slot, fault.empty() ? row.data() : nullptr, std::move(fault)};
      store_.finish({&one, 1});
    }
  }

  std::byte* block(uint32_t flight) { return staging_.data() + static_cast<size_t>(flight) * kBlock; }

  RowStore& store_;
  const RowPlace place_;
  const int depth_;
  std::optional<base::File> direct_;
  device::Buffer staging_;
  io_uring ring_{};
  bool has_ring_ = false;
  bool must_enable_ = false;
  int event_ = -1;
  // Of the ring's thread alone.
  std::vector<RowStore::Wanted> flights_;  // by their block of the staging memory
  std::vector<uint32_t> idle_, landed_;
  std::vector<RowStore::Wanted> wanted_;
  std::vector<RowStore::Fetched> fetched_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<RowFetcher> start_uring(RowStore& store, const RowPlace& place, const FetcherOptions& options,
                                        std::string& reason) {
  auto fetcher = std::make_unique<UringFetcher>(store, place, options);
  if (!fetcher->start(reason)) return nullptr;
  return fetcher;
}

}  // namespace tandem::experts
