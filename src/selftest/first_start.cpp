#include "selftest/first_start.h"

#include <cstdlib>
#include <fmt/ranges.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/version.h"
#include "selftest/selftest.h"

namespace tandem::selftest {

namespace {

constexpr uint64_t kMostBytes = 1 << 16;

std::string key_of(const device::Card& card) {
  return fmt::format("{}, {}.{}, {} multiprocessors, driver {}, build {}", card.name, card.capability_major,
                     card.capability_minor, card.multiprocessors, card.driver, base::build_description());
}

std::filesystem::path file_of(const std::filesystem::path& folder, const std::string& key) {
  const std::string hash = base::xxh3_128_hex(std::as_bytes(std::span(key.data(), key.size())));
  return folder / ("selftest-" + hash + ".json");
}

// A file that is not there, or is not what this function writes, is no result.
bool read_result(const std::filesystem::path& file, const std::string& key, std::set<std::string>& portable) {
  try {
    const base::Json json = base::parse_json(base::read_text(file, kMostBytes), file.string());
    if (json.at("key") != key) return false;
    for (const base::Json& name : json.at("portable")) portable.insert(name.get<std::string>());
    return true;
  } catch (const std::exception&) {
    portable.clear();
    return false;
  }
}

void write_result(const std::filesystem::path& file, const std::string& key, const std::set<std::string>& portable) {
  try {
    std::filesystem::create_directories(file.parent_path());
    base::write_text(file, base::Json{{"key", key}, {"portable", portable}}.dump());
  } catch (const std::exception& error) {
    spdlog::warn("the self-test's result can't be kept: {}", error.what());
  }
}

std::set<std::string> wrong_operations(device::Device& device, base::WorkerPool& pool,
                                       const std::set<std::string>& portable) {
  std::set<std::string> wrong;
  run(device, pool, {.quick = true, .portable = portable}, [&](const Trial& trial) {
    for (const auto& [name, report] : trial.reports) {
      if (report.passed()) continue;
      wrong.insert(name);
      spdlog::warn("self-test: {} is wrong on {} ({}): error {:.1e} of {:.1e} at {}", name, device.describe(),
                   trial.name, report.worst, report.tolerance, report.where);
    }
  });
  return wrong;
}

}  // namespace

std::filesystem::path results_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return std::filesystem::path(cache) / "tandem";
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::filesystem::path(home) / ".cache" / "tandem" : std::filesystem::path();
}

std::set<std::string> portable_operations(device::Device& device, const device::Card& card, base::WorkerPool& pool,
                                          const std::filesystem::path& folder) {
  const std::string key = key_of(card);
  std::set<std::string> portable;
  if (!folder.empty() && read_result(file_of(folder, key), key, portable)) return portable;
  spdlog::info("first start on {}: comparing its operations with the processor's", device.describe());
  portable = wrong_operations(device, pool, {});
  if (!portable.empty()) {
    spdlog::warn("{} will do without tensor cores in: {}", device.describe(), fmt::join(portable, ", "));
    const std::set<std::string> wrong = wrong_operations(device, pool, portable);
    if (!wrong.empty()) {
      base::unavailable(device.describe(),
                        "its results are wrong, without tensor cores too, in: {}; see tandem selftest",
                        fmt::join(wrong, ", "));
    }
  }
  if (!folder.empty()) write_result(file_of(folder, key), key, portable);
  return portable;
}

}  // namespace tandem::selftest
