#include "gpu_start.h"

#include <array>
#include <future>

#include "artifact/artifact.h"
#include "artifact/writer.h"
#include "base/error.h"
#include "base/pool.h"
#include "device/buffer.h"
#include "model/model.h"

namespace tandem::app {
namespace {

using std::chrono::steady_clock;

constexpr int64_t kPieceBytes = int64_t{256} << 20;
constexpr uint64_t kWrittenBytes = uint64_t{8} << 20;  // that a thread makes at once
constexpr uint64_t kPiecesAtOnce = 32;                 // by all threads

// Seconds of copying `bytes` to the card from one piece of the host's memory, again and again.
std::vector<double> copies(device::Device& card, const std::byte* from, int64_t bytes, int rounds) {
  const device::Buffer to(card, kPieceBytes);
  auto* target = const_cast<std::byte*>(to.data());
  std::vector<double> seconds;
  for (int round = -1; round < rounds; ++round) {
    const auto begin = steady_clock::now();
    for (int64_t at = 0; at < bytes; at += kPieceBytes) {
      card.upload(target, from, std::min(kPieceBytes, bytes - at));
    }
    card.finish();
    if (round >= 0) seconds.push_back(seconds_since(begin));
  }
  return seconds;
}

// Rows of n-gram tables stay away: they are not loaded.
void write(const artifact::Artifact& artifact, base::WorkerPool& pool, const std::filesystem::path& folder) {
  std::vector<artifact::Object> objects;
  for (const artifact::Object& object : artifact.objects()) {
    if (!artifact::is_ngram(object.encoding)) objects.push_back(object);
  }
  const std::vector<artifact::Object> sources = objects;
  artifact::place_objects(objects, uint64_t{4} << 30);
  const auto partial = artifact::partial_folder(folder);
  std::filesystem::create_directories(partial);
  artifact::Journal journal = artifact::Journal::open(partial);
  journal.append({{"conversion", "bench"}}, true);
  artifact::Writer writer(partial, objects, std::move(journal));
  std::array<std::vector<std::byte>, 2> blocks;  // one is made while the other is written
  std::future<void> written;
  const auto settle = [&] {
    if (written.valid()) written.get();
  };
  for (const artifact::Object& source : sources) {
    // Whole records of experts; else anything.
    const uint64_t unit = std::max<uint64_t>(source.record_bytes, 1);
    const uint64_t piece = std::max<uint64_t>(1, kWrittenBytes / unit) * unit;
    for (uint64_t at = 0; at < source.bytes; at += kPiecesAtOnce * piece) {
      std::vector<std::byte>& block = blocks[0];
      block.resize(static_cast<size_t>(std::min(kPiecesAtOnce * piece, source.bytes - at)));
      pool.run(static_cast<int64_t>((block.size() + piece - 1) / piece), 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<uint64_t>(begin); i < static_cast<uint64_t>(end); ++i) {
          const auto count = static_cast<size_t>(std::min(piece, block.size() - i * piece));
          artifact.read(source, at + i * piece, std::span(block).subspan(static_cast<size_t>(i * piece), count));
        }
      });
      settle();
      std::swap(blocks[0], blocks[1]);
      written = std::async(std::launch::async, [&] { writer.append(blocks[1]); });
    }
    if (source.bytes == 0) {
      settle();
      writer.skip_empty();
    }
  }
  settle();
  writer.finish(folder, {{"tool", "tandem bench gpu"}});
}

struct Removed {
  std::filesystem::path folder;
  ~Removed() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
};

}  // namespace

void measure_start(Measured& measured, const std::filesystem::path& folder,
                   const std::shared_ptr<device::cuda::WatchedDevice>& card) {
  if (std::filesystem::exists(folder)) base::bad_input("--start", "{} is there already", folder.string());
  base::WorkerPool pool(0);
  const Removed removed{folder};
  const Removed unfinished{artifact::partial_folder(folder)};
  write(bench_artifact(measured.options, measured.options.models.at(0)), pool, folder);
  const auto opened = artifact::Artifact::open(folder);
  model::LoadOptions load = measured.options.engine.load;
  std::vector<double> seconds;
  int64_t bytes = 0;
  const int rounds = measured.options.rounds;
  for (int round = -1; round < rounds; ++round) {  // the first brings the file into the page cache
    const auto begin = steady_clock::now();
    const auto model = model::Model::load(opened, *card, pool, load);
    if (round >= 0) seconds.push_back(seconds_since(begin));
    bytes = model->weight_bytes();
  }
  std::vector<double> locked;
  {
    const auto memory = device::Buffer::shared(*card, kPieceBytes);
    locked = copies(*card, memory.data(), bytes, rounds);
  }
  const std::vector<std::byte> pageable(static_cast<size_t>(kPieceBytes), std::byte{1});
  const int64_t plain_bytes = std::min(bytes, 4 * kPieceBytes);  // it is slow
  const std::vector<double> plain = copies(*card, pageable.data(), plain_bytes, rounds);
  measured.report.raw["start"] = {{"bytes", bytes},
                                  {"load_s", seconds},
                                  {"locked_copy_s", locked},
                                  {"pageable_bytes", plain_bytes},
                                  {"pageable_copy_s", plain}};
  base::Json& figures = measured.report.figures;
  figures["start.load_gb_s"] = static_cast<double>(bytes) / median(seconds) / 1e9;
  figures["start.locked_copy_gb_s"] = static_cast<double>(bytes) / median(locked) / 1e9;
  figures["start.pageable_copy_gb_s"] = static_cast<double>(plain_bytes) / median(plain) / 1e9;
  figures["start.copy_fraction"] = median(seconds) / median(locked);
}

}  // namespace tandem::app
