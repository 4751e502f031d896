// Where a model is to run: the words of --device and --ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace tandem::engine {

enum class DeviceKind { kCpu, kSim, kCuda };

struct DeviceName {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;  // of the card; 0 for cpu and sim
};

// Devices by rank: "cpu", "sim", "sim,sim", "cuda:0", "cuda:0,1", "cuda:0,cuda:1". Throws base::Error{kBadInput} for
// anything else.
std::vector<DeviceName> parse_devices(const std::string& text);

// Throws base::Error: kBadInput where the ranks do not fit the devices, kUnavailable where this version cannot compute
// there, saying what is missing.
void require_placement(const std::string& device, int ranks);

// The device of a placement on one rank. Throws as require_placement.
std::shared_ptr<device::Device> open_device(const std::string& device);

}  // namespace tandem::engine
