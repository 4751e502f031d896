// What a card can do at best, measured the plain way, to hold other figures against.
#pragma once

#include "device/device.h"

namespace tandem::ops::cuda {

struct CardCeilings {
  double read_bytes_s = 0;    // a plain kernel over 4 GiB
  double copy_bytes_s = 0;    // the driver's copy within the card: bytes read and bytes written
  double matmul_flops_s = 0;  // BF16, [8192, 8192] by [8192, 8192], random values
};

// `device` is a card with 5 GiB of free memory; medians of `rounds`.
CardCeilings measure_ceilings(device::Device& device, int rounds);

}  // namespace tandem::ops::cuda
