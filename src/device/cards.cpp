#include "device/cards.h"

#ifdef TANDEM_WITH_CUDA
#include "device/cuda/cuda_device.h"
#endif

namespace tandem::device {

#ifdef TANDEM_WITH_CUDA

std::vector<Card> cards(std::string* why) {
  return cuda::list_cards(why);
}

std::unique_ptr<Device> open_card(int ordinal) {
  return std::make_unique<cuda::CudaDevice>(require_card(ordinal));
}

#else

std::vector<Card> cards(std::string* why) {
  if (why != nullptr) *why = "this build has no CUDA part (it was compiled without nvcc)";
  return {};
}

std::unique_ptr<Device> open_card(int ordinal) {
  (void)require_card(ordinal);  // throws
  return nullptr;
}

#endif

Card require_card(int ordinal) {
  std::string why;
  std::vector<Card> found = cards(&why);
  const std::string source = fmt::format("cuda:{}", ordinal);
  if (found.empty()) base::unavailable(source, "{}; --device cpu computes on the processor", why);
  if (ordinal >= static_cast<int>(found.size())) {
    base::unavailable(source, "this machine has {} card{}, the last is cuda:{}", found.size(),
                      found.size() == 1 ? "" : "s", found.size() - 1);
  }
  return std::move(found[static_cast<size_t>(ordinal)]);
}

}  // namespace tandem::device
