// A file with a table of random rows, and the rows read back the plain way.
#pragma once

#include <filesystem>
#include <random>
#include <vector>

#include "base/file.h"
#include "experts/ngram_table.h"
#include "numeric/bf16.h"
#include "numeric/e4m3.h"

namespace tandem::testing {

class TableFile {
 public:
  TableFile(const std::filesystem::path& path, int64_t rows, int64_t width, bool bf16, uint64_t seed)
      : rows_(rows), width_(width), bf16_(bf16) {
    constexpr int64_t kFirst = 8192;  // the table need not begin the file
    const int64_t per_block = 4096 / row_bytes();
    bytes_.resize(static_cast<size_t>(kFirst + (rows + per_block - 1) / per_block * 4096));
    std::mt19937_64 random(seed);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
    base::File writer = base::File::open_write(path);
    writer.write_at(0, bytes_);
    writer.sync();
    file_ = base::File::open_read(path);
    source_ = {.file = &file_,
               .offset = kFirst,
               .rows = rows,
               .width = width,
               .bf16 = bf16,
               .scale = 0.03125F * 3,
               .name = "the table"};
  }

  const experts::NgramSource& source() const { return source_; }
  int64_t row_bytes() const { return width_ * (bf16_ ? 2 : 1); }

  std::vector<float> rows(std::span<const int64_t> ids) const {
    std::vector<float> out;
    const int64_t per_block = 4096 / row_bytes();
    for (const int64_t id : ids) {
      const auto at = static_cast<size_t>(8192 + id / per_block * 4096 + id % per_block * row_bytes());
      for (int64_t d = 0; d < width_; ++d) {
        const auto low = static_cast<size_t>(d);
        if (bf16_) {
          const auto bits = static_cast<uint16_t>(static_cast<uint16_t>(bytes_[at + 2 * low]) |
                                                  static_cast<uint16_t>(bytes_[at + 2 * low + 1]) << 8);
          out.push_back(numeric::bf16_to_float(bits));
        } else {
          out.push_back(numeric::e4m3_to_float(static_cast<uint8_t>(bytes_[at + low])) * source_.scale);
        }
      }
    }
    return out;
  }

  std::vector<int64_t> random_ids(size_t count, std::mt19937_64& random) const {
    std::vector<int64_t> ids(count);
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % static_cast<uint64_t>(rows_));
    return ids;
  }

 private:
  int64_t rows_;
  int64_t width_;
  bool bf16_;
  std::vector<std::byte> bytes_;
  base::File file_;
  experts::NgramSource source_;
};

}  // namespace tandem::testing
