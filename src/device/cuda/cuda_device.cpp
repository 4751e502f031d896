#include "device/cuda/cuda_device.h"

#include <new>

#include "base/units.h"
#include "device/cuda/check.h"
#include "device/cuda/graph.h"

namespace tandem::device::cuda {

namespace {

constexpr int kLeastDriver = 13000;  // CUDA 13.0, which drivers of R580 and newer serve
constexpr int kLeastMajor = 8;       // mma on BF16, asynchronous copies

class EventMark final : public Mark {
 public:
  explicit EventMark(cudaStream_t stream) : stream_(stream) {
    TANDEM_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~EventMark() override { (void)cudaEventDestroy(event_); }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  void set() override { TANDEM_CUDA_CHECK(cudaEventRecord(event_, stream_)); }
  void wait() override { TANDEM_CUDA_CHECK(cudaEventSynchronize(event_)); }

 private:
  cudaStream_t stream_;
  cudaEvent_t event_ = nullptr;
};

// Pages that the processor gives, large ones where there are any, are locked in a third of the time that cudaHostAlloc
// takes.
cudaError_t allocate_locked(void** memory, size_t bytes) {
  try {
    *memory = host().allocate(static_cast<int64_t>(bytes));
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  }
  const cudaError_t status = cudaHostRegister(*memory, bytes, cudaHostRegisterDefault);
  if (status != cudaSuccess) host().release(static_cast<std::byte*>(*memory));
  return status;
}

std::string driver_fault(int version) {
  if (version == 0) return "no NVIDIA driver was found; R580 or newer is needed";
  return fmt::format("the NVIDIA driver serves CUDA {}.{}, 13.0 is needed: R580 or newer", version / 1000,
                     version % 1000 / 10);
}

}  // namespace

std::vector<Card> list_cards(std::string* why) {
  int version = 0;
  (void)cudaDriverGetVersion(&version);
  if (version < kLeastDriver) {
    if (why != nullptr) *why = driver_fault(version);
    return {};
  }
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    if (why != nullptr) {
      *why = status == cudaSuccess || status == cudaErrorNoDevice
                 ? "the NVIDIA driver reports no card"
                 : fmt::format("the NVIDIA driver reports: {}", cudaGetErrorString(status));
    }
    return {};
  }
  std::vector<Card> found;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    TANDEM_CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    found.push_back({.ordinal = i,
                     .name = properties.name,
                     .capability_major = properties.major,
                     .capability_minor = properties.minor,
                     .multiprocessors = properties.multiProcessorCount,
                     .driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10),
                     .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return found;
}

CudaDevice::CudaDevice(const Card& card) : card_(card) {
  if (card.capability_major < kLeastMajor) {
    base::unavailable(fmt::format("cuda:{}", card.ordinal), "{} has compute capability {}.{}, {}.0 is needed",
                      card.name, card.capability_major, card.capability_minor, kLeastMajor);
  }
  TANDEM_CUDA_CHECK(cudaSetDevice(card.ordinal));
  TANDEM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  locks_pages_ = has(cudaDevAttrHostRegisterSupported) && has(cudaDevAttrCanUseHostPointerForRegisteredMem);
}

bool CudaDevice::has(cudaDeviceAttr attribute) const {
  int value = 0;
  TANDEM_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, card_.ordinal));
  return value != 0;
}

CudaDevice::~CudaDevice() {
  (void)cudaStreamDestroy(stream_);
}

int64_t CudaDevice::free_bytes() const {
  size_t free_bytes = 0;
  size_t all_bytes = 0;
  TANDEM_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  return static_cast<int64_t>(free_bytes);
}

void CudaDevice::bind_thread() {
  TANDEM_CUDA_CHECK(cudaSetDevice(card_.ordinal));
}

std::string CudaDevice::describe() const {
  return fmt::format("{} (cuda:{})", card_.name, card_.ordinal);
}

std::byte* CudaDevice::allocate(int64_t bytes) {
  void* memory = nullptr;
  const auto wanted = static_cast<size_t>(bytes > 0 ? bytes : 1);
  const cudaError_t status = cudaMalloc(&memory, wanted);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t free_bytes = 0;
    size_t all_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &all_bytes);
    base::unavailable(describe(), "{} do not fit into its memory: {} of {} are free", base::format_bytes(wanted),
                      base::format_bytes(free_bytes), base::format_bytes(all_bytes));
  }
  check_call(status, "cudaMalloc", __FILE__, __LINE__, bytes);
  return static_cast<std::byte*>(memory);
}

void CudaDevice::release(std::byte* memory) noexcept {
  (void)cudaFree(memory);
}

std::byte* CudaDevice::allocate_shared(int64_t bytes) {
  void* memory = nullptr;
  const auto wanted = static_cast<size_t>(bytes > 0 ? bytes : 1);
  const cudaError_t status =
      locks_pages_ ? allocate_locked(&memory, wanted) : cudaHostAlloc(&memory, wanted, cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    base::unavailable("page-locked memory", "the host has no {} of it", base::format_bytes(wanted));
  }
  check_call(status, locks_pages_ ? "cudaHostRegister" : "cudaHostAlloc", __FILE__, __LINE__, bytes);
  return static_cast<std::byte*>(memory);
}

void CudaDevice::release_shared(std::byte* memory) noexcept {
  if (!locks_pages_) {
    (void)cudaFreeHost(memory);
    return;
  }
  (void)cudaStreamSynchronize(stream_);  // no copy may reach what others get
  (void)cudaHostUnregister(memory);
  host().release(memory);
}

void CudaDevice::upload(void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  TANDEM_CUDA_CHECK_BYTES(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
                          bytes);
}

void CudaDevice::download(void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  TANDEM_CUDA_CHECK_BYTES(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
                          bytes);
  finish();
}

void CudaDevice::fetch(void* to_shared, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  TANDEM_CUDA_CHECK_BYTES(cudaMemcpyAsync(to_shared, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
                          bytes);
}

void CudaDevice::copy(void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  TANDEM_CUDA_CHECK_BYTES(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_),
                          bytes);
}

void CudaDevice::zero(void* to, int64_t bytes) {
  if (bytes <= 0) return;
  TANDEM_CUDA_CHECK_BYTES(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_), bytes);
}

void CudaDevice::finish() {
  TANDEM_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

std::unique_ptr<Mark> CudaDevice::make_mark() {
  return std::make_unique<EventMark>(stream_);
}

std::unique_ptr<Recording> CudaDevice::record(const std::function<void()>& work) {
  // Other threads' calls (loading, other cards) are none of this recording's business.
  TANDEM_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    (void)cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  TANDEM_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  return std::make_unique<Graph>(stream_, graph);
}

}  // namespace tandem::device::cuda
