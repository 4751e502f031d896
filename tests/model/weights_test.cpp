// Weights on their way to a card: staged in shared memory whose parts are filled again while others are still read.
#include "model/weights.h"

#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <map>
#include <mutex>

#include "ops/host/host_ops.h"
#include "tests/artifact/small_artifact.h"
#include "tests/artifact/temp_folder.h"

namespace tandem::model {
namespace {

using artifact::Encoding;

// A card that copies as late as it may: at a mark that is waited for, or at the end. Marks are waited for by any
// thread.
class LateCard final : public device::Device {
 public:
  std::string describe() const override { return "a card that copies late"; }
  bool is_host() const override { return false; }
  std::byte* allocate(int64_t bytes) override { return device::host().allocate(bytes); }
  void release(std::byte* memory) noexcept override { device::host().release(memory); }
  std::byte* allocate_shared(int64_t bytes) override {
    std::byte* memory = allocate(bytes);
    shared_[memory] = bytes;
    shared_bytes_ += bytes;
    return memory;
  }
  void release_shared(std::byte* memory) noexcept override {
    released_too_early_ = released_too_early_ || !pending_.empty();
    shared_.erase(memory);
    release(memory);
  }
  void upload(void* to, const void* from, int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (in_shared(from)) {
      pending_.push_back({to, from, bytes});
    } else {
      std::memcpy(to, from, static_cast<size_t>(bytes));
    }
  }
  void download(void*, const void*, int64_t) override {}
  void fetch(void*, const void*, int64_t) override {}
  void copy(void*, const void*, int64_t) override {}
  void zero(void*, int64_t) override {}
  void finish() override {
    const std::lock_guard lock(mutex_);
    copy_until(asked_ + pending_.size());
  }
  std::unique_ptr<device::Mark> make_mark() override { return std::make_unique<LateMark>(*this); }

  int64_t shared_bytes() const { return shared_bytes_; }
  bool released_too_early() const { return released_too_early_; }

 private:
  struct Copy {
    void* to;
    const void* from;
    int64_t bytes;
  };
  class LateMark final : public device::Mark {
   public:
    explicit LateMark(LateCard& card) : card_(card) {}
    void set() override {
      const std::lock_guard lock(card_.mutex_);
      at_ = card_.asked_ + card_.pending_.size();
    }
    void wait() override {
      const std::lock_guard lock(card_.mutex_);
      card_.copy_until(at_);
    }

   private:
    LateCard& card_;
    size_t at_ = 0;
  };

  bool in_shared(const void* from) const {
    const auto* at = static_cast<const std::byte*>(from);
    const auto next = shared_.upper_bound(at);
    return next != shared_.begin() && at < std::prev(next)->first + std::prev(next)->second;
  }
  void copy_until(size_t count) {
    for (; asked_ < count; ++asked_) {
      const Copy& next = pending_.front();
      std::memcpy(next.to, next.from, static_cast<size_t>(next.bytes));
      pending_.pop_front();
    }
  }

  std::mutex mutex_;
  std::map<const std::byte*, int64_t> shared_;
  int64_t shared_bytes_ = 0;
  bool released_too_early_ = false;
  std::deque<Copy> pending_;
  size_t asked_ = 0;  // copies that were made
};

// Byte i of an object named NAME.
std::byte value(const std::string& name, uint64_t i) {
  return static_cast<std::byte>((i * 0x9E3779B97F4A7C15U >> 40) + name.size());
}

constexpr int64_t kInputs = 257;
// More than the shared memory holds, with objects that end in the middle of a piece, tiny ones among them.
const std::map<std::string, int64_t> kRows = {
    {"a.weight", 40'001}, {"bb.weight", 1}, {"ccc.weight", 20'000}, {"dddd.weight", 7}, {"eeeee.weight", 8'161}};

std::vector<artifact::Object> objects() {
  std::vector<artifact::Object> objects = {testing::object("config.json", Encoding::kText, {2})};
  for (const auto& [name, count] : kRows) objects.push_back(testing::object(name, Encoding::kF32, {count, kInputs}));
  return objects;
}

void fill(const artifact::Object& object, uint64_t offset, std::span<std::byte> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] =
        object.encoding == Encoding::kText ? static_cast<std::byte>("{}"[offset + i]) : value(object.name, offset + i);
  }
}

artifact::Artifact written(const std::filesystem::path& folder) {
  std::vector<artifact::Object> placed = objects();
  artifact::place_objects(placed, uint64_t{1} << 30);
  const std::filesystem::path partial = artifact::partial_folder(folder);
  artifact::Writer writer(partial, placed, testing::new_journal(partial));
  for (const artifact::Object& object : placed) {
    std::vector<std::byte> bytes(object.bytes);
    fill(object, 0, bytes);
    writer.append(bytes);
  }
  writer.finish(folder, {{"tool", "test"}});
  return artifact::Artifact::open(folder);
}

// Loads everything, and compares it.
void load(const artifact::Artifact& artifact, LateCard& card, int threads) {
  base::WorkerPool pool(threads);
  ops::host::HostOps operations(pool, false);
  WeightLoader loader(artifact, card, operations, pool, true);
  std::map<std::string, ops::Weight> weights;
  int64_t bytes = 0;
  for (const auto& [name, count] : kRows) {
    weights[name] = loader.matrix(name, count, kInputs);
    bytes += count * kInputs * 4;
  }
  EXPECT_EQ(loader.bytes(), bytes);
  const auto memory = loader.finish();
  for (const auto& [name, weight] : weights) {
    const auto* data = static_cast<const std::byte*>(weight.data);
    int64_t wrong = 0;
    for (int64_t i = 0; i < weight.rows * kInputs * 4; ++i) wrong += data[i] != value(name, static_cast<uint64_t>(i));
    EXPECT_EQ(wrong, 0) << name << " with " << threads << " threads";
  }
}

TEST(WeightLoader, BringsEveryByteOfAFileToACardThatCopiesLate) {
  const testing::TempFolder folder;
  const artifact::Artifact artifact = written(folder / "x.tandem");
  for (const int threads : {1, 3}) {
    LateCard card;
    load(artifact, card, threads);
    EXPECT_LE(card.shared_bytes(), int64_t{32} << 20);
    EXPECT_FALSE(card.released_too_early());
  }
}

TEST(WeightLoader, BringsEveryGeneratedByteToACardThatCopiesLate) {
  const artifact::Artifact artifact = artifact::Artifact::generated("test", objects(), {}, fill);
  LateCard card;
  load(artifact, card, 2);
  EXPECT_FALSE(card.released_too_early());
}

TEST(WeightLoader, AFileThatWasCutEndsTheLoadAndLeavesNoCopyUnderWay) {
  const testing::TempFolder folder;
  const artifact::Artifact artifact = written(folder / "x.tandem");
  std::filesystem::resize_file(folder / "x.tandem" / artifact::part_name(0), 40'000'000);
  for (const int threads : {1, 3}) {
    LateCard card;
    const std::string error = testing::error_of([&] { load(artifact, card, threads); });
    EXPECT_NE(error.find("ends at byte "), std::string::npos) << error;
    EXPECT_FALSE(card.released_too_early());
  }
}

}  // namespace
}  // namespace tandem::model
