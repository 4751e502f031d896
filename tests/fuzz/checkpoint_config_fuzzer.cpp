// Input: the text of config.json, from which every expected shape is computed.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "checkpoint/architecture.h"
#include "checkpoint/matrix_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  try {
    const base::Json config = base::parse_json({reinterpret_cast<const char*>(data), size}, "config");
    (void)checkpoint::read_quantization(base::json_member(config, "quantization_config"), "config");
    const checkpoint::Architecture architecture = checkpoint::read_architecture(config, "config");
    for (const checkpoint::Parameter& parameter : architecture.parameters) {
      for (const int64_t extent : parameter.shape) {
        if (extent <= 0) std::abort();
      }
    }
    (void)architecture.elements();
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::kBadInput || error.message().find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
