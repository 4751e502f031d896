// The device that tests of whole models run on: the processor, or what TANDEM_TEST_DEVICE names (cuda:0).
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "device/cards.h"

namespace tandem::testing_support {

inline device::Device& test_device() {
  static const std::unique_ptr<device::Device> card = [] {
    const char* name = std::getenv("TANDEM_TEST_DEVICE");
    const std::string text = name != nullptr ? name : "cpu";
    return text == "cpu" ? nullptr : device::open_card(std::stoi(text.substr(text.find(':') + 1)));
  }();
  return card ? *card : device::host();
}

}  // namespace tandem::testing_support
