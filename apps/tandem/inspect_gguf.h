// `tandem inspect FILE.gguf`: what a GGUF file says about itself, and its tensors by type.
#pragma once

#include <filesystem>

namespace tandem::app {

// Prints to standard output; with `with_tensors` every tensor too. Throws base::Error as checkpoint::Gguf::open does.
void inspect_gguf(const std::filesystem::path& path, bool json, bool with_tensors);

}  // namespace tandem::app
