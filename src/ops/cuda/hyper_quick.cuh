// Quick forms of what the mixes compute again and again. What is exact elsewhere is off by a few units in the last
// place here: for few columns the exact forms take tenths of a microsecond more, for many as long as the products.
#pragma once

namespace tandem::ops::cuda {

__device__ inline float quick_inverse_rms(float squares, float share, float eps) {
  const float mean = fmaf(squares, share, eps);
  float about;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(mean));
  return fmaf(about * 0.5F, fmaf(-mean * about, about, 1.0F), about);
}
__device__ inline float quick_sigmoid(float x) {
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634F));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0F + power));
  return result;
}

}  // namespace tandem::ops::cuda
