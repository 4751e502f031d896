// Products of BF16 matrices by cuBLASLt, which is loaded when it is first asked for: there is no link to it, and a
// machine without it does without.
//
// The library's choice for a shape is asked for once and kept, so that a shape gives the same bits in every call.
// Schemes that add partial sums in the order in which they arrive are not allowed.
#include <algorithm>
#include <array>
#include <bit>
#include <cublasLt.h>
#include <dlfcn.h>
#include <map>
#include <mutex>

#include "device/device.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_paths.h"

namespace tandem::ops::cuda {

namespace dense {

namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// The library's functions that are used here, by name.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  bool whole = false;

  Library() {
    void* handle = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so"}) {
      handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) break;
    }
    if (handle == nullptr) return;
    whole = true;
    const auto find = [&]<typename F>(F& function, const char* name) {
      function = reinterpret_cast<F>(dlsym(handle, name));
      whole = whole && function != nullptr;
    };
    find(create, "cublasLtCreate");
    find(matmul, "cublasLtMatmul");
    find(desc_create, "cublasLtMatmulDescCreate");
    find(desc_set, "cublasLtMatmulDescSetAttribute");
    find(layout_create, "cublasLtMatrixLayoutCreate");
    find(preference_create, "cublasLtMatmulPreferenceCreate");
    find(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw device::Fault("cuda", fmt::format("{} failed with status {}", call, static_cast<int>(status)));
  }
}

// What the library makes of one shape. Its objects live as long as the process.
struct Way {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algo = {};
  bool found = false;
};

// Device, tokens, rows, inputs, three strides, alignments of the three matrices, whether rows have factors.
using Shape = std::array<int64_t, 11>;

int64_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return address == 0 ? 256 : int64_t{1} << std::min(8, std::countr_zero(address));
}

Shape shape_of(const Bf16Product& p, int device) {
  return {device,
          p.tokens,
          p.rows,
          p.inputs,
          p.x_stride,
          p.w_stride,
          p.d_stride,
          alignment_of(p.w),
          alignment_of(p.x),
          alignment_of(p.d),
          p.row_factors != nullptr ? 1 : 0};
}

class Ways {
 public:
  const Way& of(const Bf16Product& p) {
    const std::scoped_lock lock(mutex_);
    int device = 0;
    TANDEM_CUDA_CHECK(cudaGetDevice(&device));
    const Shape shape = shape_of(p, device);
    const auto known = ways_.find(shape);
    if (known != ways_.end()) return known->second;
    return ways_.emplace(shape, choose(p, shape, handle(device))).first->second;
  }
  cublasLtHandle_t handle_of_current() {
    const std::scoped_lock lock(mutex_);
    int device = 0;
    TANDEM_CUDA_CHECK(cudaGetDevice(&device));
    return handle(device);
  }

 private:
  cublasLtHandle_t handle(int device) {
    cublasLtHandle_t& handle = handles_[device];
    if (handle == nullptr) check(library().create(&handle), "cublasLtCreate");
    return handle;
  }

  // In the library's column-major terms: D [rows, tokens] = W^T X.
  static Way choose(const Bf16Product& p, const Shape& shape, cublasLtHandle_t handle) {
    const Library& lib = library();
    Way way;
    check(lib.desc_create(&way.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(lib.desc_set(way.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
          "cublasLtMatmulDescSetAttribute");
    if (p.row_factors != nullptr) {
      const int32_t mode = CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO;
      check(lib.desc_set(way.desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode),
            "cublasLtMatmulDescSetAttribute");
    }
    const auto layout = [&](cublasLtMatrixLayout_t& out, cudaDataType type, int64_t rows, int64_t columns,
                            int64_t stride) {
      check(lib.layout_create(&out, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
            "cublasLtMatrixLayoutCreate");
    };
    layout(way.w, CUDA_R_16BF, p.inputs, p.rows, p.w_stride);
    layout(way.x, CUDA_R_16BF, p.inputs, p.tokens, p.x_stride);
    layout(way.d, CUDA_R_32F, p.rows, p.tokens, p.d_stride);

    cublasLtMatmulPreference_t preference = nullptr;
    check(lib.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(lib.preference_set(preference, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(shape[7]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(shape[8]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(shape[9]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(shape[9]));
    cublasLtMatmulHeuristicResult_t result = {};
    int results = 0;
    const cublasStatus_t status =
        lib.heuristic(handle, way.desc, way.w, way.x, way.d, way.d, preference, 1, &result, &results);
    (void)lib.preference_destroy(preference);
    way.found = status == CUBLAS_STATUS_SUCCESS && results > 0 && result.state == CUBLAS_STATUS_SUCCESS &&
                result.workspaceSize <= kWorkspaceBytes;
    way.algo = result.algo;
    return way;
  }

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Shape, Way> ways_;
};

Ways& ways() {
  static Ways all;
  return all;
}

}  // namespace

int64_t library_workspace() {
  return static_cast<int64_t>(kWorkspaceBytes);
}

bool library_serves(const Bf16Product& product) {
  return ways().of(product).found;
}

void prepare_library() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {  // a plan for a card that is elsewhere
    (void)cudaGetLastError();
    return;
  }
  (void)ways().handle_of_current();
}

void library_product(const Context& context, const Bf16Product& p, std::byte* workspace) {
  const Way& way = ways().of(p);
  const float zero = 0.0F;
  const float* factor = p.row_factors != nullptr ? p.row_factors : &p.factor;
  check(library().matmul(ways().handle_of_current(), way.desc, factor, p.w, way.w, p.x, way.x, &zero, p.d, way.d, p.d,
                         way.d, &way.algo, workspace, kWorkspaceBytes, context.stream),
        "cublasLtMatmul");
}

}  // namespace dense

bool dense_library_loaded() {
  return dense::library().whole;
}

}  // namespace tandem::ops::cuda
