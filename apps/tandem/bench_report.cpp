#include "bench_report.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/version.h"

namespace tandem::app {
namespace {

base::Json machine(int threads) {
  utsname system{};
  uname(&system);
  const auto memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  return {{"cpu", base::cpu_model()},
          {"cpu_level", base::cpu_level_name(base::cpu_level())},
          {"usable_cores", base::usable_cores()},
          {"threads", threads},
          {"memory_bytes", memory},
          {"system", fmt::format("{} {}", system.sysname, system.release)}};
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

}  // namespace

base::Json BenchReport::to_json() const {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return {{"bench", bench},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
          {"build", base::build_description()},
          {"machine", machine(threads)},
          {"command", command_line()},
          {"raw", raw},
          {"figures", figures}};
}

void BenchReport::print(bool json) const {
  if (json) {
    fmt::print("{}\n", to_json().dump(-1, ' ', false, base::Json::error_handler_t::replace));
    return;
  }
  size_t width = 0;
  for (const auto& [name, value] : figures.items()) width = std::max(width, name.size());
  for (const auto& [name, value] : figures.items()) fmt::print("{:<{}}  {:.4g}\n", name, width, value.get<double>());
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

}  // namespace tandem::app
