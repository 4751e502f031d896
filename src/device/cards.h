// The cards of this machine, as far as this build and its driver can use them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace tandem::device {

struct Card {
  int ordinal = 0;
  std::string name;
  int capability_major = 0, capability_minor = 0;
  int multiprocessors = 0;
  std::string driver;  // the CUDA version that the driver serves, "13.0"
  int64_t memory_bytes = 0;
};

// Empty where there is none or the driver does not serve; `why`, where not null, then receives one sentence that says
// what is missing.
std::vector<Card> cards(std::string* why = nullptr);

// Throws base::Error{kUnavailable} with what is missing: this build's CUDA part, a driver (R580 or newer), the card.
Card require_card(int ordinal);
std::unique_ptr<Device> open_card(int ordinal);

}  // namespace tandem::device
