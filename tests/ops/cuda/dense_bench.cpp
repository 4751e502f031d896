// Speed of dense products on the first card: bytes a second of few columns against a plain read of the same size, and
// operations a second of many. Arguments: "few", "many" or "exact" (FP32 inputs), then names of formats and shapes as
// ROWSxINPUTS (default: all).
#include <array>
#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "ops/cuda/dense.h"
#include "ops/cuda/dense_measure.h"
#include "ops/weight_bytes.h"
#include "tests/ops/cuda/dense_card.h"

namespace tandem::ops::cuda {
namespace {

constexpr int64_t kPoolBytes = int64_t{2700} << 20;
constexpr int64_t kScalesBytes = int64_t{512} << 20;
constexpr int64_t kScratchBytes = int64_t{512} << 20;
constexpr int64_t kInputsBytes = int64_t{640} << 20;
constexpr int64_t kBeyondCache = int64_t{300} << 20;  // of data that launches rotate over

struct BenchFormat {
  const char* name;
  WeightFormat format;
  int64_t group;
};
constexpr std::array kFormats = {
    BenchFormat{"bf16", WeightFormat::kBF16, 0},   BenchFormat{"f32", WeightFormat::kF32, 0},
    BenchFormat{"fp8", WeightFormat::kFp8Row, 0},  BenchFormat{"fp8block", WeightFormat::kFp8Block, 0},
    BenchFormat{"nvfp4", WeightFormat::kNvfp4, 0}, BenchFormat{"int8", WeightFormat::kInt8, 128},
    BenchFormat{"int4", WeightFormat::kInt4, 128}, BenchFormat{"int4g32", WeightFormat::kInt4, 32},
    BenchFormat{"int3", WeightFormat::kInt3, 128},
};
struct Shape {
  int64_t rows, inputs;
};
constexpr std::array kShapes = {Shape{17408, 5120}, Shape{5120, 17408}, Shape{10240, 5120}, Shape{248320, 5120},
                                Shape{10240, 2560}, Shape{320, 10240},  Shape{2560, 6144}};

// Without its data; `data` only has to be something for its bytes to be counted.
Weight shaped(const BenchFormat& f, const Shape& s) {
  Weight w;
  w.data = &f;
  w.format = f.format;
  w.rows = s.rows;
  w.inputs = s.inputs;
  w.group = f.group;
  w.scale_type = f.format == WeightFormat::kFp8Row ? ScaleType::kF32 : ScaleType::kBF16;
  return w;
}
int64_t data_bytes(const BenchFormat& f, const Shape& s) {
  return ops::data_bytes(shaped(f, s));
}
int64_t scale_bytes(const BenchFormat& f, const Shape& s) {
  return ops::scale_bytes(shaped(f, s));
}
int64_t padded(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

class Bench {
 public:
  Bench()
      : card_(kScratchBytes),
        pool_(card_.device(), kPoolBytes),
        scales_(card_.device(), kScalesBytes),
        x_(card_.device(), kInputsBytes),
        y_(card_.device(), kInputsBytes) {
    // Without the highest exponent bit: no infinities.
    fill_random(card_.context(), pool_.data(), kPoolBytes, 1, 0xbfbfbfbf);
    fill_random(card_.context(), scales_.data(), kScalesBytes, 2, 0x3f3f3f3f);
    fill_random(card_.context(), x_.data(), kInputsBytes, 3, 0xbfffffff);
  }

  Weight weight(const BenchFormat& f, const Shape& s, int64_t copy) const {
    Weight w = shaped(f, s);
    w.data = pool_.data() + copy * padded(data_bytes(f, s));
    w.scales = scales_.data() + copy * padded(scale_bytes(f, s));
    w.lane_order = can_arrange(w);
    return w;
  }
  static int64_t copies(const BenchFormat& f, const Shape& s) {
    const int64_t each = padded(data_bytes(f, s));
    const int64_t wanted = kBeyondCache / each + 2;
    const int64_t by_scales = kScalesBytes / std::max<int64_t>(1, padded(scale_bytes(f, s)));
    return std::max<int64_t>(1, std::min({wanted, kPoolBytes / each, by_scales}));
  }

  double read_gb_per_second(int64_t bytes) {
    bytes = padded(bytes);
    const int64_t count = std::max<int64_t>(1, std::min(kBeyondCache / bytes + 2, kPoolBytes / bytes));
    const LaunchTime time = measure_launches(card_.context(), 20, 3, [&](int i) {
      read_all(card_.context(), pool_.data() + i % count * bytes, bytes, y_.as<uint32_t>());
    });
    return static_cast<double>(bytes) / time.each_us / 1e3;
  }

  void few(const BenchFormat& f, const Shape& s) {
    const int64_t bytes = data_bytes(f, s) + scale_bytes(f, s);
    if (bytes > kPoolBytes) {
      fmt::print("{:8} {:6}x{:<6}{:6.1f} MB: more than the {} MB of weights here\n", f.name, s.rows, s.inputs,
                 static_cast<double>(bytes) / 1e6, kPoolBytes / 1000000);
      return;
    }
    const double read = read_gb_per_second(bytes);
    std::string line = fmt::format("{:8} {:6}x{:<6}{:6.1f} MB, read {:4.0f} GB/s", f.name, s.rows, s.inputs,
                                   static_cast<double>(bytes) / 1e6, read);
    const int64_t count = copies(f, s);
    for (const int64_t columns : {1, 2, 4, 8}) {
      const LaunchTime time = measure_launches(card_.context(), 20, 3, [&](int i) {
        linear(card_.context(), x_.as<float>(), columns, weight(f, s, i % count), false, y_.as<float>());
      });
      const double rate = static_cast<double>(bytes) / time.each_us / 1e3;
      line += fmt::format(" | {}: {:.1f} us {:.0f} {:.0f}% ({:.1f})", columns, time.each_us, rate, 100 * rate / read,
                          time.single_us);
    }
    fmt::print("{}\n", line);
  }

  // Exact inputs: routers and gates.
  void exact(const BenchFormat& f, const Shape& s) {
    std::string line = fmt::format("{:8} {:6}x{:<6} exact", f.name, s.rows, s.inputs);
    for (const int64_t columns : {1, 4, 8, 512, 2048}) {
      const LaunchTime time = measure_launches(card_.context(), 20, 3, [&](int i) {
        linear(card_.context(), x_.as<float>(), columns, weight(f, s, i % copies(f, s)), true, y_.as<float>());
      });
      line += fmt::format(" | {}: {:.1f} us ({:.1f})", columns, time.each_us, time.single_us);
    }
    fmt::print("{}\n", line);
  }

  void many(const BenchFormat& f, const Shape& s, int64_t columns) {
    std::string line = fmt::format("{:9}[{:6},{:6}] {:5} columns:", f.name, s.rows, s.inputs, columns);
    for (const bool library : {true, false}) {
      if (library && !dense_library_loaded()) continue;
      Context context = card_.context();
      context.tensor_cores = library;
      const LaunchTime time = measure_launches(context, 3, 2, [&](int i) {
        linear(context, x_.as<float>(), columns, weight(f, s, i % copies(f, s)), false, y_.as<float>());
      });
      const double operations =
          2.0 * static_cast<double>(s.rows) * static_cast<double>(s.inputs) * static_cast<double>(columns);
      line += fmt::format("  {} {:8.1f} us {:4.0f} TFLOP/s", library ? "cuBLASLt" : "tiles", time.each_us,
                          operations / time.each_us / 1e6);
    }
    fmt::print("{}\n", line);
  }

 private:
  DenseCard card_;
  device::Buffer pool_, scales_, x_, y_;
};

bool named(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array kExactShapes = {Shape{4, 10240}, Shape{48, 5120}, Shape{320, 10240}, Shape{512, 2560}};

void run(const std::string& what, const std::vector<std::string>& formats, const std::vector<std::string>& shapes) {
  Bench bench;
  for (const BenchFormat& f : kFormats) {
    if (!named(formats, f.name)) continue;
    if (what == "exact") {
      for (const Shape& s : kExactShapes) bench.exact(f, s);
      continue;
    }
    for (const Shape& s : kShapes) {
      if (!named(shapes, fmt::format("{}x{}", s.rows, s.inputs))) continue;
      if (what == "few") {
        bench.few(f, s);
      } else if (s.rows < 100000) {
        for (const int64_t columns : {512, 2048, 8192}) bench.many(f, s, columns);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cuda

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  std::vector<std::string> formats;
  std::vector<std::string> shapes;
  for (size_t i = 1; i < arguments.size(); ++i) {
    (arguments[i].find('x') != std::string::npos ? shapes : formats).push_back(arguments[i]);
  }
  try {
    tandem::ops::cuda::run(arguments.empty() ? "few" : arguments[0], formats, shapes);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
