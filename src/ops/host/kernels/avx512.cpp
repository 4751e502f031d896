#define TANDEM_ISA avx512
#define TANDEM_ISA_NAME "avx512"
#include "ops/host/kernels/table.h"
