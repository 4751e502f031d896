// Reads the matrices of dense products: which objects stand beside each other tells the format (docs/checkpoints.md).
#include <array>
#include <bit>
#include <cstring>
#include <fmt/ranges.h>

#include "base/error.h"
#include "model/weights.h"
#include "numeric/fp8_block.h"
#include "numeric/nvfp4.h"

namespace tandem::model {

namespace {

using artifact::Encoding;
using ops::ScaleType;
using ops::WeightFormat;

int64_t elements_of(const artifact::Object& object) {
  int64_t elements = 1;
  for (const int64_t dimension : object.shape) elements *= dimension;
  return elements;
}

}  // namespace

// The objects of one matrix.
class WeightLoader::MatrixReader {
 public:
  MatrixReader(WeightLoader& loader, const std::string& name, int64_t rows, int64_t inputs)
      : loader_(loader), name_(name), module_(name.substr(0, name.size() - std::strlen(".weight"))) {
    out_.rows = rows;
    out_.inputs = inputs;
  }

  ops::Weight read() {
    const artifact::Object* packed = loader_.artifact_.find(module_ + ".weight_packed");
    if (packed != nullptr) {
      packed->encoding == Encoding::kU8 ? nvfp4(*packed, true) : integers(*packed);
      return out_;
    }
    const artifact::Object& weight = loader_.artifact_.at(name_);
    switch (weight.encoding) {
      case Encoding::kBF16:
        return plain(weight, WeightFormat::kBF16);
      case Encoding::kF32:
        return plain(weight, WeightFormat::kF32);
      case Encoding::kF16:
        return plain(weight, WeightFormat::kF16);
      case Encoding::kF8E4M3:
        fp8(weight);
        return out_;
      case Encoding::kU8:
        nvfp4(weight, false);
        return out_;
      default:
        refuse(weight, "is no format of a matrix");
    }
  }

 private:
  [[noreturn]] void refuse(const artifact::Object& object, std::string_view why) const {
    base::bad_input(loader_.artifact_.folder().string(),
                    "{} is {} [{}], which {}; the config asks for a matrix [{}, {}]", object.name,
                    artifact::encoding_name(object.encoding), fmt::join(object.shape, ", "), why, out_.rows,
                    out_.inputs);
  }

  void load(const artifact::Object& object, const std::vector<int64_t>& shape) {
    if (object.shape != shape) refuse(object, fmt::format("should be [{}]", fmt::join(shape, ", ")));
    out_.data = loader_.load(object);
  }

  ops::Weight plain(const artifact::Object& weight, WeightFormat format) {
    out_.format = format;
    load(weight, {out_.rows, out_.inputs});
    return out_;
  }

  void load_scales(const artifact::Object& scales, int64_t count) {
    switch (scales.encoding) {
      case Encoding::kBF16:
        out_.scale_type = ScaleType::kBF16;
        break;
      case Encoding::kF16:
        out_.scale_type = ScaleType::kF16;
        break;
      case Encoding::kF32:
        out_.scale_type = ScaleType::kF32;
        break;
      default:
        refuse(scales, "is no number format of scales");
    }
    if (elements_of(scales) != count) refuse(scales, fmt::format("should have {} scales", count));
    out_.scales = loader_.load(scales);
  }

  // As checkpoint::detect_format tells them: a row scale comes first.
  void fp8(const artifact::Object& weight) {
    load(weight, {out_.rows, out_.inputs});
    const artifact::Object* inverse = loader_.artifact_.find(module_ + ".weight_scale_inv");
    const artifact::Object& scales = inverse != nullptr ? *inverse : loader_.artifact_.at(module_ + ".weight_scale");
    const int64_t blocks = numeric::fp8_blocks(out_.rows) * numeric::fp8_blocks(out_.inputs);
    if (inverse == nullptr && (scales.shape.empty() || scales.shape == std::vector<int64_t>{1})) {
      out_.format = WeightFormat::kFp8Tensor;
      out_.scale = loader_.scalar(scales.name);
    } else if (inverse == nullptr && scales.shape == std::vector<int64_t>{out_.rows, 1} && out_.inputs > 1) {
      out_.format = WeightFormat::kFp8Row;
      load_scales(scales, out_.rows);
    } else {
      out_.format = WeightFormat::kFp8Block;
      load_scales(scales, blocks);
    }
  }

  void nvfp4(const artifact::Object& codes, bool divides) {
    if (out_.inputs % numeric::kNvfp4Block != 0) refuse(codes, "has blocks of 16 inputs");
    out_.format = WeightFormat::kNvfp4;
    load(codes, {out_.rows, out_.inputs / 2});
    const artifact::Object& scales = loader_.artifact_.at(module_ + ".weight_scale");
    if (scales.encoding != Encoding::kF8E4M3 || elements_of(scales) != out_.rows * (out_.inputs / 16)) {
      refuse(scales, fmt::format("should be f8_e4m3 [{}, {}]", out_.rows, out_.inputs / 16));
    }
    out_.scales = loader_.load(scales);
    out_.divides = divides;
    const std::string scale = module_ + (divides ? ".weight_global_scale" : ".weight_scale_2");
    out_.scale = loader_.scalar(scale);
    if (divides && out_.scale == 0) refuse(loader_.artifact_.at(scale), "is 0 and would divide");
  }

  void integers(const artifact::Object& codes) {
    switch (artifact::integer_bits(codes.encoding)) {
      case 3:
        out_.format = WeightFormat::kInt3;
        break;
      case 4:
        out_.format = WeightFormat::kInt4;
        break;
      case 8:
        out_.format = WeightFormat::kInt8;
        break;
      default:
        refuse(codes, "is no encoding of packed codes");
    }
    load(codes, {out_.rows, out_.inputs});
    const artifact::Object& scales = loader_.artifact_.at(module_ + ".weight_scale");
    const int64_t groups = scales.shape.size() == 2 && scales.shape[0] == out_.rows ? scales.shape[1] : 0;
    if (groups < 1 || out_.inputs % groups != 0 || out_.inputs / groups % 16 != 0) {
      refuse(scales, "cuts no row in groups of a multiple of 16 inputs");
    }
    out_.group = out_.inputs / groups;
    load_scales(scales, out_.rows * groups);
  }

  WeightLoader& loader_;
  const std::string& name_;
  std::string module_;
  ops::Weight out_;
};

ops::Weight WeightLoader::matrix(const std::string& name, int64_t rows, int64_t inputs) {
  ops::Weight w = MatrixReader(*this, name, rows, inputs).read();
  if (!to_host_memory_ && ops_.arranges(w)) {
    to_arrange_.push_back(w);
    w.lane_order = true;  // from finish() on
  }
  return w;
}

}  // namespace tandem::model
