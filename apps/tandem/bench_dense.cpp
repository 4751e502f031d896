#include "bench_dense.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/error.h"
#include "base/pool.h"
#include "base/units.h"
#include "bench_report.h"
#include "ceilings.h"
#include "device/buffer.h"
#include "numeric/int_group.h"
#include "ops/host/host_ops.h"
#include "options.h"

namespace tandem::app {
namespace {

using ops::ScaleType;
using ops::WeightFormat;

struct DenseOptions {
  int threads = 0;
  std::optional<base::CpuLevel> isa;
  int rounds = kLeastRounds;
  int64_t rows = 17408;
  int64_t inputs = 5120;
  uint64_t megabytes = 1024;
  std::vector<std::string> formats;
  std::vector<int> columns = {1, 2, 4, 8, 512};
  bool json = false;
};

struct DenseFormat {
  const char* name;
  WeightFormat format;
};
constexpr DenseFormat kDenseFormats[] = {{"bf16", WeightFormat::kBF16},
                                         {"fp8_row", WeightFormat::kFp8Row},
                                         {"fp8_tensor", WeightFormat::kFp8Tensor},
                                         {"fp8_block", WeightFormat::kFp8Block},
                                         {"nvfp4", WeightFormat::kNvfp4},
                                         {"int3", WeightFormat::kInt3},
                                         {"int4", WeightFormat::kInt4},
                                         {"int8", WeightFormat::kInt8}};

std::vector<std::string> dense_format_names() {
  std::vector<std::string> names;
  for (const DenseFormat& format : kDenseFormats) names.emplace_back(format.name);
  return names;
}

constexpr int64_t kGroup = 128;
constexpr int kFewColumns = 8;

struct MatrixBytes {
  int64_t codes = 0;
  int64_t scales = 0;
  int64_t all() const { return codes + scales; }
};

// Scales are BF16, but for NVFP4's.
MatrixBytes matrix_bytes(WeightFormat format, int64_t rows, int64_t inputs) {
  const int64_t elements = rows * inputs;
  switch (format) {
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return {2 * elements, 0};
    case WeightFormat::kF32:
      return {4 * elements, 0};
    case WeightFormat::kFp8Row:
      return {elements, 2 * rows};
    case WeightFormat::kFp8Tensor:
      return {elements, 0};
    case WeightFormat::kFp8Block:
      return {elements, 2 * ((rows + kGroup - 1) / kGroup) * ((inputs + kGroup - 1) / kGroup)};
    case WeightFormat::kNvfp4:
      return {elements / 2, elements / 16};
    case WeightFormat::kInt3:
    case WeightFormat::kInt4:
    case WeightFormat::kInt8:
      break;
  }
  const int bits = format == WeightFormat::kInt3 ? 3 : format == WeightFormat::kInt4 ? 4 : 8;
  return {rows * numeric::int_row_bytes(inputs, bits), 2 * rows * (inputs / kGroup)};
}

// Matrices of one format, one behind the other over the memory that was asked for: all hold the same weights.
struct Matrices {
  device::Buffer memory;
  std::vector<ops::Weight> weights;
  int64_t bytes = 0;  // that a pass over all reads
};

void fill(std::mt19937_64& random, WeightFormat format, MatrixBytes bytes, std::byte* out) {
  const bool fp8 =
      format == WeightFormat::kFp8Row || format == WeightFormat::kFp8Tensor || format == WeightFormat::kFp8Block;
  for (int64_t at = 0; at < bytes.codes; at += 2) {
    auto bits = static_cast<uint16_t>(random());
    if (format == WeightFormat::kBF16) bits = static_cast<uint16_t>(0x3c00 | (bits & 0x83ff));  // magnitudes below 0.25
    if (fp8) bits &= 0xbfbf;  // no NaN among the codes
    std::memcpy(out + at, &bits, static_cast<size_t>(std::min<int64_t>(2, bytes.codes - at)));
  }
  for (int64_t at = 0; at < bytes.scales; at += 2) {
    uint16_t bits = static_cast<uint16_t>(0x3b80 + random() % 0x80);
    if (format == WeightFormat::kNvfp4) bits = static_cast<uint16_t>(0x2828 + (random() & 0x0f0f));
    std::memcpy(out + bytes.codes + at, &bits, static_cast<size_t>(std::min<int64_t>(2, bytes.scales - at)));
  }
}

Matrices make_matrices(base::WorkerPool& pool, const DenseOptions& options, WeightFormat format) {
  Matrices matrices;
  const MatrixBytes bytes = matrix_bytes(format, options.rows, options.inputs);
  const auto stride = static_cast<int64_t>(base::round_up(static_cast<uint64_t>(bytes.all()), 4096));
  const int64_t count = (static_cast<int64_t>(options.megabytes << 20) + stride - 1) / stride;
  matrices.memory = device::Buffer(count * stride);
  std::byte* data = matrices.memory.data();
  std::mt19937_64 random(1);
  fill(random, format, bytes, data);
  pool.run(count - 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin + 1; i < end + 1; ++i) {
      std::memcpy(data + i * stride, data, static_cast<size_t>(bytes.all()));
    }
  });
  for (int64_t i = 0; i < count; ++i) {
    matrices.weights.push_back({.data = data + i * stride,
                                .format = format,
                                .rows = options.rows,
                                .inputs = options.inputs,
                                .scales = data + i * stride + bytes.codes,
                                .scale_type = ScaleType::kBF16,
                                .group = kGroup,
                                .scale = 0x1p-10F});
  }
  matrices.bytes = count * bytes.all();
  return matrices;
}

// Seconds of one pass over all matrices.
double run_dense_pass(ops::host::HostOps& host, std::span<const ops::Weight> matrices, int64_t columns,
                      const std::vector<float>& x, std::vector<float>& y) {
  const auto begin = std::chrono::steady_clock::now();
  for (const ops::Weight& weight : matrices) host.linear(x.data(), columns, weight, false, y.data());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!std::isfinite(y[0]) || y[0] == 0.0F) base::internal_error("bench", "the product is {}", y[0]);
  return seconds;
}

// `matmul_rate`: the machine's multiply-adds, in 10^9 operations a second.
void measure_dense(BenchReport& report, base::WorkerPool& pool, const DenseOptions& options, const DenseFormat& format,
                   double matmul_rate) {
  const Matrices matrices = make_matrices(pool, options, format.format);
  // The ceiling is read from the very memory that the matrices lie in.
  const Ceiling read =
      measure_read(pool, {matrices.memory.data(), static_cast<size_t>(matrices.memory.bytes())}, options.rounds);
  const std::string ceiling = fmt::format("dense.{}.read", format.name);
  report.raw[ceiling] = {{"bytes", read.amount}, {"s", read.seconds}};
  const double read_rate = static_cast<double>(read.amount) / median(read.seconds) / 1e9;
  report.figures[ceiling + "_gb_s"] = read_rate;
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  ops::host::HostOps host(pool, true, options.isa ? ops::host::kernels(*options.isa) : ops::host::kernels());
  for (const int columns : options.columns) {
    // Many columns are bound by operations: a part of the matrices is enough.
    const size_t count =
        columns <= kFewColumns ? matrices.weights.size() : std::min<size_t>(2, matrices.weights.size());
    std::vector<float> x(static_cast<size_t>(columns * options.inputs));
    for (float& value : x) value = normal(random);
    std::vector<float> y(static_cast<size_t>(columns * options.rows));
    std::vector<double> seconds;
    for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
      const double pass = run_dense_pass(host, std::span(matrices.weights).first(count), columns, x, y);
      if (round >= 0) seconds.push_back(pass);
    }
    const std::string name = fmt::format("dense.{}.c{}", format.name, columns);
    const int64_t bytes = matrices.bytes / static_cast<int64_t>(matrices.weights.size()) * static_cast<int64_t>(count);
    const int64_t operations = 2 * static_cast<int64_t>(count) * columns * options.rows * options.inputs;
    report.raw[name] = {{"bytes", bytes}, {"matrices", count}, {"operations", operations}, {"s", seconds}};
    if (columns <= kFewColumns) {
      report.figures[name + ".read_fraction"] = static_cast<double>(bytes) / median(seconds) / 1e9 / read_rate;
    } else {
      report.figures[name + ".gflop_s"] = static_cast<double>(operations) / median(seconds) / 1e9;
      report.figures[name + ".matmul_fraction"] = report.figures[name + ".gflop_s"].get<double>() / matmul_rate;
    }
  }
}

void bench_dense(const DenseOptions& options) {
  if (options.rounds < kLeastRounds) base::bad_input("--rounds", "{} is below {}", options.rounds, kLeastRounds);
  if (options.rows < 1 || options.rows > (1 << 20)) base::bad_input("--rows", "{} is not 1 to 1048576", options.rows);
  if (options.inputs < kGroup || options.inputs % kGroup != 0 || options.inputs > (1 << 20)) {
    base::bad_input("--inputs", "{} is no multiple of {} up to 1048576", options.inputs, kGroup);
  }
  base::WorkerPool pool(options.threads);
  BenchReport report;
  report.bench = "dense";
  report.threads = pool.threads();
  const Ceiling matmul = measure_matmul(pool, options.rounds);
  report.raw["matmul"] = {{"operations", matmul.amount}, {"s", matmul.seconds}};
  const double matmul_rate = static_cast<double>(matmul.amount) / median(matmul.seconds) / 1e9;
  report.figures["matmul_gflop_s"] = matmul_rate;
  for (const DenseFormat& format : kDenseFormats) {
    if (std::find(options.formats.begin(), options.formats.end(), format.name) == options.formats.end()) continue;
    measure_dense(report, pool, options, format, matmul_rate);
  }
  report.print(options.json);
}

}  // namespace

void add_bench_dense(CLI::App& bench) {
  const auto options = std::make_shared<DenseOptions>();
  options->formats = dense_format_names();
  CLI::App* command =
      bench.add_subcommand("dense", "The processor's dense products in each weight format against its read bandwidth");
  per_call(command->add_flag("--json", options->json, "Print one JSON object"));
  per_call(command->add_option("--rounds", options->rounds, "Rounds of each measurement, at least 5"))
      ->capture_default_str();
  per_call(command->add_option("--threads", options->threads, "Threads that compute; 0 takes the cores that are free"))
      ->capture_default_str();
  add_isa_option(*command, options->isa);
  per_call(command->add_option("--formats", options->formats, "Formats of the weights"))
      ->delimiter(',')
      ->check(CLI::IsMember(dense_format_names()))
      ->capture_default_str();
  per_call(command->add_option("--columns", options->columns, "Columns of a product"))
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  per_call(command->add_option("--rows", options->rows, "Rows of a matrix"))->capture_default_str();
  per_call(command->add_option("--inputs", options->inputs, "Inputs of a matrix"))->capture_default_str();
  per_call(command->add_option("--megabytes", options->megabytes, "Memory that the matrices are spread over, in MiB"))
      ->capture_default_str();
  command->footer("Example:\n  tandem bench dense --formats nvfp4,int3 --columns 1,8 --json");
  command->callback([options] { bench_dense(*options); });
}

}  // namespace tandem::app
