// An NVIDIA card through the CUDA runtime. One stream carries all operations and copies.
#pragma once

#include <cuda_runtime_api.h>
#include <string>
#include <vector>

#include "device/cards.h"

namespace tandem::device::cuda {

std::vector<Card> list_cards(std::string* why);

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const Card& card);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string describe() const override;
  bool is_host() const override { return false; }
  void bind_thread() override;
  int64_t free_bytes() const override;
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* memory) noexcept override;
  std::byte* allocate_shared(int64_t bytes) override;
  void release_shared(std::byte* memory) noexcept override;
  void upload(void* to, const void* from, int64_t bytes) override;
  void download(void* to, const void* from, int64_t bytes) override;
  void fetch(void* to_shared, const void* from, int64_t bytes) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void zero(void* to, int64_t bytes) override;
  void finish() override;
  std::unique_ptr<Mark> make_mark() override;
  std::unique_ptr<Recording> record(const std::function<void()>& work) override;

  const Card& card() const { return card_; }
  cudaStream_t stream() const { return stream_; }

 private:
  bool has(cudaDeviceAttr attribute) const;

  Card card_;
  cudaStream_t stream_ = nullptr;
  bool locks_pages_ = false;  // whether kernels reach any page of the host that is locked, at the host's address
};

}  // namespace tandem::device::cuda
