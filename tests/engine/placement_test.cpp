#include "engine/placement.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cards.h"

namespace tandem::engine {
namespace {

std::string refusal(const std::string& device, int ranks, base::ErrorKind kind) {
  try {
    require_placement(device, ranks);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), kind) << device;
    return error.what();
  }
  return "accepted";
}

TEST(Placement, DevicesAreNamedByRank) {
  EXPECT_EQ(parse_devices("cpu").size(), 1u);
  EXPECT_EQ(parse_devices("sim,sim").size(), 2u);
  for (const char* text : {"cuda:0,3", "cuda:0,cuda:3"}) {
    const auto devices = parse_devices(text);
    ASSERT_EQ(devices.size(), 2u);
    EXPECT_EQ(devices[1].kind, DeviceKind::kCuda);
    EXPECT_EQ(devices[1].ordinal, 3);
  }
}

TEST(Placement, OtherWordsAreRefused) {
  for (const char* text : {"", "gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:0,", "cuda:99", "0", "sim,cpu",
                           "cuda:0,sim", "cpu,", "cpu,0"}) {
    EXPECT_THROW(parse_devices(text), base::Error) << text;
  }
  EXPECT_EQ(refusal("gpu", 1, base::ErrorKind::kBadInput), "device: 'gpu' is none of cpu, sim[,sim] and cuda:N[,N]");
  EXPECT_EQ(refusal("cpu,cpu", 2, base::ErrorKind::kBadInput),
            "device: 'cpu,cpu' names the processor 2 times; use --ranks");
  EXPECT_EQ(refusal("cpu", 0, base::ErrorKind::kBadInput), "ranks: 0 is outside [1, 2]");
  EXPECT_EQ(refusal("sim,sim", 1, base::ErrorKind::kBadInput), "device: 'sim,sim' names 2 devices for 1 rank");
}

TEST(Placement, OneRankIsComputedOn) {
  EXPECT_NO_THROW(require_placement("cpu", 1));
  EXPECT_TRUE(open_device("cpu")->is_host());
  EXPECT_NE(refusal("sim", 1, base::ErrorKind::kUnavailable).find("has no simulated device"), std::string::npos);
  EXPECT_NE(refusal("cpu", 2, base::ErrorKind::kUnavailable).find("on one rank, not on 2"), std::string::npos);
}

// Without a card the line says what is missing; with one, what there is.
TEST(Placement, CardsThatAreNotThereAreRefused) {
  std::string why;
  const auto cards = device::cards(&why);
  if (cards.empty()) {
    EXPECT_EQ(refusal("cuda:0", 1, base::ErrorKind::kUnavailable),
              "cuda:0: " + why + "; --device cpu computes on the processor");
    EXPECT_TRUE(why.find("R580 or newer") != std::string::npos || why.find("no card") != std::string::npos ||
                why.find("no CUDA part") != std::string::npos)
        << why;
  } else {
    EXPECT_NO_THROW(require_placement("cuda:0", 1));
  }
  if (cards.size() < 64) {
    EXPECT_NE(refusal("cuda:63", 1, base::ErrorKind::kUnavailable), "accepted");
  }
}

}  // namespace
}  // namespace tandem::engine
