#include "engine/placement.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "device/cards.h"

namespace tandem::engine {
namespace {

constexpr const char* kSource = "device";

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    parts.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  parts.push_back(text);
  return parts;
}

std::optional<int> ordinal(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value > 63) return std::nullopt;
  return value;
}

}  // namespace

std::vector<DeviceName> parse_devices(const std::string& text) {
  std::vector<DeviceName> devices;
  for (std::string_view part : split(text)) {
    const bool after_cuda = !devices.empty() && devices.back().kind == DeviceKind::kCuda;
    std::optional<int> card;
    if (part.starts_with("cuda:")) {
      card = ordinal(part.substr(5));
    } else if (after_cuda) {
      card = ordinal(part);
    }
    if (card) {
      devices.push_back({DeviceKind::kCuda, *card});
    } else if (part == "cpu" || part == "sim") {
      devices.push_back({part == "cpu" ? DeviceKind::kCpu : DeviceKind::kSim});
    } else {
      base::bad_input(kSource, "'{}' is none of cpu, sim[,sim] and cuda:N[,N]", text);
    }
  }
  const auto other_kind = [&](const DeviceName& device) { return device.kind != devices[0].kind; };
  if (std::any_of(devices.begin(), devices.end(), other_kind)) {
    base::bad_input(kSource, "'{}' mixes kinds of devices", text);
  }
  if (devices[0].kind == DeviceKind::kCpu && devices.size() > 1) {
    base::bad_input(kSource, "'{}' names the processor {} times; use --ranks", text, devices.size());
  }
  return devices;
}

void require_placement(const std::string& device, int ranks) {
  const auto devices = parse_devices(device);
  if (ranks < 1 || ranks > 2) base::bad_input("ranks", "{} is outside [1, 2]", ranks);
  if (devices.size() > 1 && devices.size() != static_cast<size_t>(ranks)) {
    base::bad_input(kSource, "'{}' names {} devices for {} rank{}", device, devices.size(), ranks,
                    ranks == 1 ? "" : "s");
  }
  if (devices[0].kind == DeviceKind::kSim) {
    base::unavailable(kSource,
                      "'{}': this version has no simulated device, it computes on the processor (--device cpu) or on a "
                      "card (--device cuda:0)",
                      device);
  }
  if (ranks > 1) base::unavailable("ranks", "this version computes on one rank, not on {}", ranks);
  if (devices[0].kind == DeviceKind::kCuda) device::require_card(devices[0].ordinal);
}

std::shared_ptr<device::Device> open_device(const std::string& device) {
  require_placement(device, 1);
  const DeviceName name = parse_devices(device)[0];
  if (name.kind == DeviceKind::kCuda) return device::open_card(name.ordinal);
  return {std::shared_ptr<void>(), &device::host()};  // owned by nobody
}

}  // namespace tandem::engine
