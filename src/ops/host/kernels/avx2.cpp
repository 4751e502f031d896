#define TANDEM_ISA avx2
#define TANDEM_ISA_NAME "avx2"
#include "ops/host/kernels/table.h"
