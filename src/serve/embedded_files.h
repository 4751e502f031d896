// Files of this folder that the build puts into the program (cmake/embed_files.cmake); nothing is read from disk when
// it runs.
#pragma once

#include <span>
#include <string_view>

namespace tandem::serve {

struct EmbeddedFile {
  std::string_view name;  // from src/serve: "web/style.css"
  std::string_view text;
};

std::span<const EmbeddedFile> embedded_files();

}  // namespace tandem::serve
