// From the tensors of GGUF files of the architectures qwen35, qwen35moe and qwen4exp to those of the published
// checkpoints (qwen3_5, qwen3_5_moe, qwen4_exp): names, and what llama.cpp's converter did to the values.
//
// The converter (llama.cpp, conversion/qwen.py and conversion/qwen4exp.py, as of November 2026)
//   - adds 1 to the weights of zero-centred norms, and stores -exp(A_log);
//   - tiles value heads: where r value heads share a key head, the checkpoint's order is key head by key head, GGUF's
//   goes
//     round all key heads r times. It concerns every tensor of a DeltaNet with value heads among its rows or columns;
//   - splits the indexer's projection, joins the draft head's two matrices side by side, joins the parts of the n-gram
//     table, drops dimensions of 1, and keeps the n-gram constants in metadata.
// Rows can be put back whatever the tensor's type; columns (out_proj) only where no block straddles two heads. A reader
// that keeps the tiled order in all tensors of a layer computes the same where value head h then uses key head
// h mod key_heads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf_metadata.h"

namespace tandem::convert {

// The figures of a model that names and orders depend on.
struct GgufModel {
  std::string family;  // of the checkpoint: "qwen4_exp"
  int64_t layers = 0;  // without the draft head's
  int64_t draft_layers = 0;
  int64_t hidden = 0;
  int64_t streams = 1;  // of the residual state
  int64_t key_heads = 0, value_heads = 0, key_head_dim = 0, value_head_dim = 0;
  int64_t index_query_rows = 0;  // the indexer's queries, all heads
  int64_t ngram_layer = -1;      // from 0; -1 where there is no n-gram memory

  // Rows of in_proj_qkv and channels of conv1d before the value heads.
  int64_t key_rows() const { return 2 * key_heads * key_head_dim; }
};

// Throws base::Error{kBadInput} for another architecture and for figures that no such model has, naming the key.
GgufModel read_gguf_model(const checkpoint::GgufMetadata& metadata, const std::string& source);

enum class GgufForm : uint8_t {
  kSame,
  kOnePlus,   // the file holds 1 + w
  kMinusExp,  // the file holds -exp(w)
};
enum class GgufHeads : uint8_t { kNone, kRows, kColumns };

// What a GGUF tensor, or some of its columns, is in the checkpoint.
struct CheckpointPiece {
  // The checkpoint's tensor. `*` stands for what GGUF's tensor has in one: the experts, by its outermost dimension; the
  // parts of the n-gram table, row after row.
  std::string name;
  int64_t first_row = 0;  // where the piece's rows begin in the checkpoint's tensor
  // Columns of the GGUF tensor; all where columns is 0.
  int64_t first_column = 0;
  int64_t columns = 0;
  GgufForm form = GgufForm::kSame;
  // The dimension in tiled order: value heads of head_width rows or columns each, from first_head_row on.
  GgufHeads heads = GgufHeads::kNone;
  int64_t first_head_row = 0;
  int64_t head_width = 0;
};

// One piece, or the two that were joined. Throws base::Error{kBadInput} for a tensor that no such model has.
std::vector<CheckpointPiece> checkpoint_pieces(const GgufModel& model, std::string_view tensor,
                                               const std::string& source);

// Where GGUF has the checkpoint's value head: both count from 0.
int64_t gguf_value_head(const GgufModel& model, int64_t head);

// For each row (or column) of the checkpoint's tensor, in its order, the row of the GGUF tensor. `rows` counts them
// all. Throws base::Error{kBadInput} where they are not first_head_row plus whole heads.
std::vector<int64_t> gguf_rows(const GgufModel& model, const CheckpointPiece& piece, int64_t rows,
                               const std::string& source);

// Undoes the form in place. w = stored - 1 is exact for stored values from 1/2 to 2, and 1 + w gives the stored value
// back; log(-stored) is rounded. Throws base::Error{kBadInput} with `source` where a value is not finite, or an
// exponential not negative.
void undo_gguf_form(GgufForm form, std::span<float> values, const std::string& source);

}  // namespace tandem::convert
