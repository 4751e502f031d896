#include "tests/golden/support.h"

#include <algorithm>
#include <cstdlib>
#include <gtest/gtest.h>
#include <map>
#include <unistd.h>

#include "convert/convert.h"
#include "tests/support/test_device.h"

namespace tandem::golden {

namespace {

// Of `models` and `golden`: the build's, or where a machine without one has them (tools/device-check.sh).
std::filesystem::path golden_folder() {
  const char* data = std::getenv("TANDEM_TEST_DATA");
  return data != nullptr ? std::filesystem::path(data) / "golden" : std::filesystem::path(TANDEM_GOLDEN_DIR);
}
std::filesystem::path source_folder(const std::string& name) {
  if (name.ends_with("-random")) return golden_folder() / name;
  const char* data = std::getenv("TANDEM_TEST_DATA");
  return std::filesystem::path(data != nullptr ? data : TANDEM_SOURCE_DIR) / "models" / name;
}

// Owns the temporary folder of converted models for the length of the process.
struct Artifacts {
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("tandem_golden_" + std::to_string(::getpid()));
  std::map<std::string, artifact::Artifact> opened;

  ~Artifacts() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
};

Artifacts& artifacts() {
  static Artifacts all;
  return all;
}

template <typename T>
std::vector<T> values(const checkpoint::Checkpoint& file, const std::string& name, checkpoint::Dtype dtype) {
  const checkpoint::Tensor& tensor = file.at(name);
  EXPECT_EQ(tensor.dtype, dtype) << name;
  std::vector<T> out(tensor.bytes / sizeof(T));
  file.read(tensor, 0, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace

Reference::Reference(const std::string& file) : file_(checkpoint::Checkpoint::open(golden_folder() / file)) {}
std::vector<float> Reference::floats(const std::string& name) const {
  return values<float>(file_, name, checkpoint::Dtype::kF32);
}
std::vector<int32_t> Reference::ints(const std::string& name) const {
  return values<int32_t>(file_, name, checkpoint::Dtype::kI32);
}
std::vector<uint8_t> Reference::bytes(const std::string& name) const {
  return values<uint8_t>(file_, name, checkpoint::Dtype::kU8);
}
std::vector<int64_t> Reference::shape(const std::string& name) const {
  return file_.at(name).shape;
}

const artifact::Artifact& demo_artifact(const std::string& name, convert::MtpExperts mtp_experts) {
  const std::string key = name + "-mtp-" + convert::mtp_experts_name(mtp_experts);
  const auto found = artifacts().opened.find(key);
  if (found != artifacts().opened.end()) return found->second;
  std::filesystem::create_directories(artifacts().folder);
  const std::filesystem::path out = artifacts().folder / (key + ".tandem");
  convert::Options options;
  options.quiet = true;
  options.choices.mtp_experts = mtp_experts;
  convert::convert(source_folder(name), out, options);
  return artifacts().opened.emplace(key, artifact::Artifact::open(out)).first->second;
}

Reencoded reencoded_artifacts(reencode::MatrixForm form) {
  const std::filesystem::path folder = artifacts().folder / reencode::form_name(form);
  const std::filesystem::path encoded = folder / "encoded";
  const std::filesystem::path decoded = folder / "decoded";
  reencode::write_reencoded(source_folder("demo-dense"), form, encoded, decoded);
  const auto open = [](const std::filesystem::path& source) {
    std::filesystem::path out = source;
    out += ".tandem";
    convert::Options options;
    options.quiet = true;
    convert::convert(source, out, options);
    return WrittenArtifact{source, artifact::Artifact::open(out)};
  };
  return {open(encoded), open(decoded)};
}

Loaded::Loaded(const artifact::Artifact& artifact, const model::LoadOptions& options, int64_t tokens, int slots)
    : model_(model::Model::load(artifact, testing_support::test_device(), pool_, options)),
      sequences_(std::make_unique<context::SequencePool>(*model_, slots * tokens, slots)) {}

double largest_difference(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double difference = std::fabs(static_cast<double>(got[i]) - want[i]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

double relative_norm(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  const double relative = std::sqrt(difference / norm);
  return std::isnan(relative) ? INFINITY : relative;
}

int32_t argmax(const float* row, int64_t count) {
  return static_cast<int32_t>(std::max_element(row, row + count) - row);
}

std::vector<float> last_rows(const std::vector<float>& all, int64_t layers, int64_t tokens, int64_t rows) {
  const int64_t width = static_cast<int64_t>(all.size()) / (layers * tokens);
  std::vector<float> out;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto end = all.begin() + (layer + 1) * tokens * width;
    out.insert(out.end(), end - rows * width, end);
  }
  return out;
}

}  // namespace tandem::golden
