#define TANDEM_ISA avx512vbmi
#define TANDEM_ISA_NAME "avx512vbmi"
#include "ops/host/kernels/table.h"
