// The page for people at / (docs/web.md). Its sources are the files of src/serve/web, which are part of the program
// (embedded_files.h).
#pragma once

#include "serve/http/router.h"

namespace tandem::serve {

// GET /: with `web_page` the page for browsers, which say that they accept text/html; for other clients, which probe,
// the program's name and version. GET /web/NAME: the page's parts. The page holds no secrets and loads without a key.
void add_web_page_routes(Router& router, bool web_page);

}  // namespace tandem::serve
