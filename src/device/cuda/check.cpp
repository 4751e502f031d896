#include "device/cuda/check.h"

#include <cstring>
#include <string>
#include <string_view>

#include "base/units.h"
#include "device/device.h"

namespace tandem::device::cuda {

void check_call(cudaError_t status, const char* call, const char* file, int line, int64_t bytes) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  const std::string_view path(file);
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const std::string_view function = std::string_view(call).substr(0, std::string_view(call).find('('));
  const std::string size = bytes >= 0 ? fmt::format(" over {} bytes", bytes) : std::string();
  const std::string message = fmt::format("{} failed{}: {} ({}), at {}:{}", function, size, cudaGetErrorString(status),
                                          cudaGetErrorName(status), name, line);
  if (status == cudaErrorMemoryAllocation) throw base::Error(base::ErrorKind::kUnavailable, "cuda", message);
  throw Fault("cuda", message);
}

}  // namespace tandem::device::cuda
