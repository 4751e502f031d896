#include "ops/cuda/experts_bf16_kernel.cuh"

namespace tandem::ops::cuda::expert::bf16 {

namespace {

template <typename F>
void launch_either(const Context& context, bool gate_up, const Product& product) {
  if (gate_up) {
    launch<F, true>(context, product);
  } else {
    launch<F, false>(context, product);
  }
}

}  // namespace

void launch_blocks(const Context& context, numeric::ExpertFormat format, bool gate_up, const Product& product) {
  using numeric::ExpertFormat;
  switch (format) {
    case ExpertFormat::kIq2s:
      return launch_either<Iq2s>(context, gate_up, product);
    case ExpertFormat::kIq3xxs:
      return launch_either<Iq3xxs>(context, gate_up, product);
    case ExpertFormat::kIq3s:
      return launch_either<Iq3s>(context, gate_up, product);
    case ExpertFormat::kIq4xs:
      return launch_either<Iq4xs>(context, gate_up, product);
    case ExpertFormat::kIq4nl:
      return launch_either<Iq4nl>(context, gate_up, product);
    default:
      return launch_either<Q2_0>(context, gate_up, product);
  }
}

}  // namespace tandem::ops::cuda::expert::bf16
