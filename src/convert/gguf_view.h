// A GGUF file as the published checkpoint that it was made from: the same names, shapes and orders, so that recipes and
// `tandem verify` read it as any other. convert/gguf_names.h tells what llama.cpp's converter had changed.
//
// Routed experts are one tensor a projection (checkpoint::stacked_name) and keep the file's blocks where experts may
// have them. All else is F32, F16 or BF16 where the file has it so, and BF16, to nearest even, where the file has
// blocks: there are no kernels for them. Norms and decay rates, whose form is undone, are F32.
#pragma once

#include <filesystem>

#include "base/json.h"
#include "checkpoint/checkpoint.h"

namespace tandem::convert {

// The whole model. `config` is the published checkpoint's config.json, without which the parts of the n-gram table are
// not known. Throws base::Error{kBadInput} for a file of another architecture, for tensors that no such model has, and
// for a type that cannot be decoded.
checkpoint::Checkpoint view_gguf(const std::filesystem::path& path, const base::Json& config);

// The routed experts of all layers but the draft head's. Throws as view_gguf, and where the file has none or some of a
// type that experts can't keep.
checkpoint::Checkpoint view_gguf_experts(const std::filesystem::path& path);

}  // namespace tandem::convert
