// The page for people at / (docs/web.md). Its sources are the files of src/serve/web, which the build puts into the
// program; nothing is read from disk when it runs.
#pragma once

#include <span>
#include <string_view>

#include "serve/http/router.h"

namespace tandem::serve {

struct EmbeddedFile {
  std::string_view name;  // "style.css"
  std::string_view text;
};

// The files of src/serve/web.
std::span<const EmbeddedFile> embedded_files();

// GET /: with `web_page` the page for browsers, which say that they accept text/html; for other clients, which probe,
// the program's name and version. GET /web/NAME: the page's parts. The page holds no secrets and loads without a key.
void add_web_page_routes(Router& router, bool web_page);

}  // namespace tandem::serve
