// ggml as a shared library, by the names of its functions. What is declared here is what version 0.12.9 of the package
// (package.json) declares, whose functions bear the prefix lm_.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <string>

namespace tandem::ggml_compare {

class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_LAZY | RTLD_LOCAL)) {
    if (handle_ == nullptr) fail(dlerror());
  }

  // Ends the program where the function is missing.
  template <typename Function>
  Function* function(const std::string& name) const {
    void* address = dlsym(handle_, name.c_str());
    if (address == nullptr) fail("ggml has no function " + name);
    return reinterpret_cast<Function*>(address);
  }

  [[noreturn]] static void fail(const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::exit(1);
  }

 private:
  void* handle_;
};

}  // namespace tandem::ggml_compare
