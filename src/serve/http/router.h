// Which handler answers which path, and what is refused before a handler sees it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "serve/http/errors.h"
#include "serve/http/exchange.h"
#include "serve/http/http.h"

namespace tandem::serve {

// Answers through `reply`, now or later; a base::Error it throws becomes the error answer.
using Handler = std::function<void(HttpRequest request, Reply reply)>;
// Writes an error in the form of the API that the path belongs to.
using ErrorFormat = HttpResponse (*)(const ApiError& error);

struct Route {
  std::string method;  // GET answers HEAD too, without the body
  // A whole path, "/v1/models", or one that ends in a parameter, "/v1/models/{id}", which takes the rest of the path,
  // slashes too.
  std::string path;
  Handler handler;
  bool open = false;    // served without a key
  bool quick = false;   // runs on the connections' thread: must take microseconds
  bool polled = false;  // asked for again and again, so that it is logged only with --log-level debug
  ErrorFormat errors = openai_error;
};

// Filled before the server starts, then only read.
class Router {
 public:
  // Looks at a request of which only the head has come; an error refuses it. `open` tells that its route needs no key.
  using Guard = std::function<std::optional<ApiError>(const HttpRequest& head, bool open)>;

  void add(Route route) { routes_.push_back(std::move(route)); }
  const std::vector<Route>& routes() const { return routes_; }
  void set_guard(Guard guard) { guard_ = std::move(guard); }

  struct Match {
    const Route* route = nullptr;
    std::string parameter;
    std::optional<ApiError> refusal;  // 404, 405 with Allow, or the guard's
    ErrorFormat errors = openai_error;
  };
  Match match(const HttpRequest& head) const;

 private:
  std::vector<Route> routes_;
  Guard guard_;
};

}  // namespace tandem::serve
