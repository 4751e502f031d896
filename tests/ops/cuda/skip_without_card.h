// For tests that need a card.
#pragma once

#include <gtest/gtest.h>
#include <string>

#include "device/cards.h"

// Skips the test, with the reason, where there is none.
#define SKIP_WITHOUT_A_CARD() \
  std::string why;            \
  if (device::cards(&why).empty()) GTEST_SKIP() << "no card: " << why
