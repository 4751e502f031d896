#include "bench_experts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/pool.h"
#include "base/units.h"
#include "bench_report.h"
#include "ceilings.h"
#include "commands.h"
#include "device/buffer.h"
#include "numeric/block_units.h"
#include "numeric/expert_record.h"
#include "numeric/fp8_block.h"
#include "numeric/fp8_units.h"
#include "numeric/nvfp4.h"
#include "ops/host/host_ops.h"
#include "options.h"

namespace tandem::app {
namespace {

constexpr int64_t kExpertsPerToken = 10;
constexpr int64_t kSamples = 8;  // different random experts, repeated in memory

struct ExpertsOptions {
  int threads = 0;
  int rounds = kLeastRounds;
  int64_t hidden = 2560;
  int64_t inner = 640;
  uint64_t megabytes = 2304;
  std::vector<std::string> formats;
  std::vector<std::string> isas;
  std::vector<int> columns = {1, 2, 4, 8};
  bool json = false;
};

struct Format {
  const char* name;
  numeric::ExpertFormat format;
};
constexpr Format kFormats[] = {
    {"nvfp4", numeric::ExpertFormat::kNvfp4},  {"fp8_block", numeric::ExpertFormat::kFp8Block},
    {"iq3_s", numeric::ExpertFormat::kIq3s},   {"iq3_xxs", numeric::ExpertFormat::kIq3xxs},
    {"iq2_s", numeric::ExpertFormat::kIq2s},   {"iq4_xs", numeric::ExpertFormat::kIq4xs},
    {"iq4_nl", numeric::ExpertFormat::kIq4nl}, {"q2_0", numeric::ExpertFormat::kQ2_0}};

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

// The records of one format, all three matrices in it, spread over the memory that was asked for.
struct Records {
  device::Buffer memory;
  std::vector<float> scalars;
  ops::ExpertTable table;
};

void fill_nvfp4(std::mt19937_64& random, int64_t rows, int64_t inputs, std::span<std::byte> out) {
  std::vector<uint8_t> codes(static_cast<size_t>(numeric::nvfp4_code_bytes(rows, inputs)));
  std::vector<uint8_t> scales(static_cast<size_t>(numeric::nvfp4_scale_bytes(rows, inputs)));
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(0x28 + random() % 0x50);
  numeric::pack_units(codes, scales, rows, inputs, out);
}

void fill_blocks(std::mt19937_64& random, numeric::ExpertFormat format, int64_t rows, int64_t inputs,
                 std::span<std::byte> out) {
  const numeric::GgmlType type = numeric::ggml_type_of(format);
  std::vector<std::byte> blocks(out.size());
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random());
  for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(numeric::ggml_type(type).block_bytes)) {
    const auto scale = static_cast<uint16_t>(0x0800 + random() % 0x800);  // 2^-13 to 2^-11
    std::memcpy(blocks.data() + at, &scale, sizeof scale);
  }
  numeric::pack_block_units(numeric::block_unit_of(format), blocks, rows, inputs, out);
}

void fill_fp8(std::mt19937_64& random, int64_t rows, int64_t inputs, std::span<std::byte> out,
              std::span<std::byte> scales) {
  std::vector<uint8_t> codes(out.size());
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % 0x7F | (random() & 0x80));
  numeric::pack_fp8_units(codes, rows, inputs, out);
  for (size_t at = 0; at < scales.size(); at += 2) {
    const auto scale = static_cast<uint16_t>(0x3700 + random() % 0x80);  // 2^-17 to 2^-16
    std::memcpy(scales.data() + at, &scale, sizeof scale);
  }
}

// The width inside an expert, made whole blocks of the format.
int64_t inner_for(const ExpertsOptions& options, numeric::ExpertFormat format) {
  const int64_t unit = numeric::expert_multiple(format);
  return base::ceil_div(options.inner, unit) * unit;
}

Records make_records(base::WorkerPool& pool, const ExpertsOptions& options, numeric::ExpertFormat format) {
  Records records;
  ops::ExpertTable& table = records.table;
  table.inner = inner_for(options, format);
  table.hidden = options.hidden;
  table.place({format, format, format});
  table.experts =
      std::max<int64_t>(2 * kExpertsPerToken, static_cast<int64_t>(options.megabytes << 20) / table.record.bytes);
  records.memory = device::Buffer(table.experts * table.record.bytes);
  std::mt19937_64 random(1);
  std::byte* data = records.memory.data();
  for (int64_t e = 0; e < kSamples; ++e) {
    for (int m = 0; m < 3; ++m) {
      const int64_t rows = m == 2 ? table.hidden : table.inner;
      const int64_t inputs = m == 2 ? table.inner : table.hidden;
      const int64_t bytes = table.record.matrices[1].offset;  // all three have as many weights
      const std::span<std::byte> out(data + e * table.record.bytes + table.record.matrices[m].offset,
                                     static_cast<size_t>(bytes));
      if (format == numeric::ExpertFormat::kNvfp4) {
        fill_nvfp4(random, rows, inputs, out);
      } else if (format == numeric::ExpertFormat::kFp8Block) {
        const int64_t grid = 2 * numeric::fp8_blocks(rows) * numeric::fp8_blocks(inputs);
        fill_fp8(random, rows, inputs, out,
                 {data + e * table.record.bytes + table.record.matrices[m].scales_offset, static_cast<size_t>(grid)});
      } else {
        fill_blocks(random, format, rows, inputs, out);
      }
    }
  }
  pool.run(table.experts - kSamples, 1, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin + kSamples; e < end + kSamples; ++e) {
      std::memcpy(data + e * table.record.bytes, data + e % kSamples * table.record.bytes,
                  static_cast<size_t>(table.record.bytes));
    }
  });
  for (int64_t i = 0; i < table.experts; ++i) {
    // Gate and up have different input scales, so that each column is quantised for both.
    records.scalars.insert(records.scalars.end(), {0x1p-12F, 0x1p-12F, 0x1p-12F, 0x1p-9F, 0x1.1p-9F, 0x1p-9F});
  }
  table.records = data;
  table.scalars = records.scalars.data();
  return records;
}

const ops::host::Kernels* kernels_of(const std::string& isa) {
  if (isa == "avx2") return ops::host::avx2_kernels();
  // The best AVX-512 set of this processor, or the one without VBMI by name.
  const ops::host::Kernels* best = ops::host::avx512vbmi_kernels();
  return isa == "avx512" && best != nullptr ? best : ops::host::avx512_kernels();
}

// Seconds of one pass over all records in calls of ten experts, each with `columns` columns.
double run_pass(ops::host::HostOps& host, const Records& records, int64_t columns, const std::vector<float>& x,
                std::vector<float>& out) {
  const int64_t hidden = records.table.hidden;
  std::vector<int32_t> ids(static_cast<size_t>(columns * kExpertsPerToken));
  const std::vector<float> weights(ids.size(), 0.1F);
  std::vector<int32_t> faults(static_cast<size_t>(columns), -1);
  const int64_t calls = records.table.experts / kExpertsPerToken;
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t call = 0; call < calls; ++call) {
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(call * kExpertsPerToken + static_cast<int64_t>(i) % kExpertsPerToken);
    }
    host.experts({.x = x.data(),
                  .tokens = columns,
                  .top_k = kExpertsPerToken,
                  .ids = ids.data(),
                  .weights = weights.data(),
                  .table = records.table,
                  .quantise_activations = true,
                  .lower = out.data(),
                  .upper = out.data() + columns * hidden,
                  .faults = faults.data(),
                  .fault = 0});
    const auto fault = std::find(faults.begin(), faults.end(), 0);
    if (fault != faults.end()) base::internal_error("bench", "column {} is faulty", fault - faults.begin());
  }
  const double seconds = seconds_since(begin);
  const float sum = out[0] + out[static_cast<size_t>(columns * hidden)];
  if (!std::isfinite(sum) || sum == 0.0F) base::internal_error("bench", "the experts' sum is {}", sum);
  return seconds;
}

void measure_format(BenchReport& report, base::WorkerPool& pool, const ExpertsOptions& options, const Format& format) {
  const Records records = make_records(pool, options, format.format);
  // The ceiling is read from the very memory that the records lie in.
  const Ceiling read =
      measure_read(pool, {records.memory.data(), static_cast<size_t>(records.memory.bytes())}, options.rounds);
  const std::string ceiling = fmt::format("experts.{}.read", format.name);
  report.raw[ceiling] = {{"bytes", read.amount}, {"s", read.seconds}};
  const double read_rate = static_cast<double>(read.amount) / median(read.seconds) / 1e9;
  report.figures[ceiling + "_gb_s"] = read_rate;
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  for (const std::string& isa : options.isas) {
    const ops::host::Kernels* kernels = kernels_of(isa);
    if (kernels == nullptr) continue;
    ops::host::HostOps host(pool, true, *kernels);
    double one = 0;
    for (const int columns : options.columns) {
      std::vector<float> x(static_cast<size_t>(columns * options.hidden));
      for (float& value : x) value = normal(random);
      std::vector<float> out(2 * x.size());
      std::vector<double> seconds;
      for (int round = -1; round < options.rounds; ++round) {
        const double pass = run_pass(host, records, columns, x, out);
        if (round >= 0) seconds.push_back(pass);
      }
      const std::string name = fmt::format("experts.{}.{}.c{}", format.name, isa, columns);
      const int64_t bytes = records.table.experts / kExpertsPerToken * kExpertsPerToken * records.table.record.bytes;
      report.raw[name] = {{"bytes", bytes}, {"calls", records.table.experts / kExpertsPerToken}, {"s", seconds}};
      const double rate = static_cast<double>(bytes) / median(seconds) / 1e9;
      report.figures[name + ".read_fraction"] = rate / read_rate;
      if (columns == 1) one = median(seconds);
      if (one > 0 && columns > 1) report.figures[name + ".cost_ratio"] = median(seconds) / one;
    }
  }
}

// What a call of the pool costs beyond the work itself: every thread has one piece, which spins for a fixed time.
void measure_dispatch(BenchReport& report, base::WorkerPool& pool) {
  constexpr double kWork = 20e-6;
  std::vector<double> seconds;
  for (int i = 0; i < 2000; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    pool.run(pool.threads(), 1, [](int64_t first, int64_t last) {
      for (int64_t piece = first; piece < last; ++piece) {
        const auto start = std::chrono::steady_clock::now();
        while (seconds_since(start) < kWork) {
        }
      }
    });
    seconds.push_back(seconds_since(begin));
  }
  report.raw["dispatch"] = {{"median_s", median(seconds)}, {"work_s", kWork}, {"calls", seconds.size()}};
  report.figures["pool.dispatch_us"] = (median(seconds) - kWork) * 1e6;
}

void bench_experts(const ExpertsOptions& options) {
  if (options.rounds < kLeastRounds) base::bad_input("--rounds", "{} is below {}", options.rounds, kLeastRounds);
  (void)numeric::nvfp4_record_bytes(options.inner, options.hidden);
  base::WorkerPool pool(options.threads);
  BenchReport report;
  report.bench = "experts";
  report.threads = pool.threads();
  measure_dispatch(report, pool);
  for (const Format& format : kFormats) {
    if (std::find(options.formats.begin(), options.formats.end(), format.name) == options.formats.end()) continue;
    measure_format(report, pool, options, format);
  }
  report.print(options.json);
}

}  // namespace

void add_bench_experts(CLI::App& bench) {
  const auto options = std::make_shared<ExpertsOptions>();
  options->formats = format_names();
  options->isas = {"avx512", "avx2"};
  CLI::App* command =
      bench.add_subcommand("experts", "The processor's expert kernels against its read bandwidth, on random experts");
  per_call(command->add_flag("--json", options->json, "Print one JSON object"));
  per_call(command->add_option("--rounds", options->rounds, "Rounds of each measurement, at least 5"))
      ->capture_default_str();
  per_call(command->add_option("--threads", options->threads, "Threads that compute; 0 takes the cores that are free"))
      ->capture_default_str();
  per_call(command->add_option("--formats", options->formats, "Formats of the experts"))
      ->delimiter(',')
      ->check(CLI::IsMember(format_names()))
      ->capture_default_str();
  per_call(command->add_option("--isa", options->isas, "Instruction sets, as far as the processor has them"))
      ->delimiter(',')
      ->check(CLI::IsMember({"avx512", "avx512f", "avx2"}))
      ->capture_default_str();
  per_call(command->add_option("--columns", options->columns, "Columns that each expert computes"))
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  per_call(command->add_option("--hidden", options->hidden, "Width of the model"))->capture_default_str();
  per_call(command->add_option("--inner", options->inner, "Width inside an expert"))->capture_default_str();
  per_call(command->add_option("--megabytes", options->megabytes, "Memory that the records are spread over, in MiB"))
      ->capture_default_str();
  command->footer("Example:\n  tandem bench experts --formats nvfp4 --columns 1,2,4,8 --json");
  command->callback([options] { bench_experts(*options); });
}

}  // namespace tandem::app
