// Block copies where at least one buffer is on a GPU, on the current stream.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <vector>

#include "copy_blocks.h"

namespace vllm_mimo {

namespace {

constexpr int kThreads = 512;
constexpr int kTeams = 16;        // thread blocks at most: the rest of the GPU is for the model
constexpr int kPairsPerLaunch = 120;  // by value in the kernel's 4 KB of arguments
constexpr int64_t kBatchFrom = 256 << 10;  // larger blocks: the copy engines do as well

struct Pairs {
  int64_t value[2 * kPairsPerLaunch];
};

void check(cudaError_t error, const char* what) {
  STD_TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(Layout dst, Layout src, Pairs pairs, int count, int64_t bytes, int slices) {
  copy_share(
      dst, src, pairs.value, count, bytes, slices, blockIdx.x, gridDim.x, threadIdx.x, kThreads);
}

// The address under which a kernel on `device` reaches a buffer; null where it may not be able to:
// pageable memory, and memory of another GPU, which needs peer access.
uint8_t* reachable(uint8_t* pointer, int device) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  const bool here = attributes.type == cudaMemoryTypeHost ||
                    (attributes.type == cudaMemoryTypeDevice && attributes.device == device);
  return here ? static_cast<uint8_t*>(attributes.devicePointer) : nullptr;
}

void copy_by_kernel(const BlockCopy& copy, cudaStream_t stream) {
  for (int64_t first = 0; first < copy.count; first += kPairsPerLaunch) {
    // By value, so that the caller's table may go as soon as this returns.
    Pairs pairs;
    const int count = static_cast<int>(std::min<int64_t>(kPairsPerLaunch, copy.count - first));
    std::copy_n(copy.pairs + 2 * first, 2 * count, pairs.value);
    const int slices = slices_of(count, copy.bytes, kTeams, kThreads);
    copy_kernel<<<std::min(count * slices, kTeams), kThreads, 0, stream>>>(
        copy.dst, copy.src, pairs, count, copy.bytes, slices);
    check(cudaGetLastError(), "launching the block copy");
  }
}

// A run of neighbouring blocks is one copy; the copy engines do the work.
void copy_by_engine(const BlockCopy& copy, cudaStream_t stream) {
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<size_t> sizes;
  for (int64_t i = 0; i < copy.count;) {
    const int64_t run = run_length(copy, i, copy.count);
    targets.push_back(copy.target(i));
    sources.push_back(copy.source(i));
    sizes.push_back(run * copy.bytes);
    i += run;
  }
#if CUDART_VERSION >= 13000
  // One call of the driver for all; it does not take the legacy default stream.
  if (stream != nullptr && sizes.size() > 1) {
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    size_t from = 0;
    if (cudaMemcpyBatchAsync(
            targets.data(), sources.data(), sizes.data(), sizes.size(), &attributes, &from, 1,
            stream) == cudaSuccess) {
      return;
    }
    cudaGetLastError();  // an older driver: one by one, which may repeat a copy but does no harm
  }
#endif
  for (size_t i = 0; i < sizes.size(); ++i) {
    check(
        cudaMemcpyAsync(targets[i], sources[i], sizes[i], cudaMemcpyDefault, stream),
        "copying blocks");
  }
}

void copy_blocks_cuda(
    Tensor dst, const Tensor& src, const Tensor& pairs, int64_t block_bytes, int64_t dst_offset,
    int64_t dst_stride, int64_t src_offset, int64_t src_stride, int64_t threads) {
  BlockCopy copy = checked_copy(
      dst, src, pairs, block_bytes, dst_offset, dst_stride, src_offset, src_stride);
  if (copy.count == 0) return;
  const int device = dst.is_cuda() ? dst.get_device_index() : src.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  void* raw = nullptr;
  STD_TORCH_CHECK(
      aoti_torch_get_current_cuda_stream(device, &raw) == 0, "no current CUDA stream");
  const cudaStream_t stream = static_cast<cudaStream_t>(raw);
  uint8_t* to = reachable(copy.dst.base, device);
  uint8_t* from = reachable(copy.src.base, device);
  if (to != nullptr && from != nullptr && block_bytes < kBatchFrom) {
    copy.dst.base = to;
    copy.src.base = from;
    copy_by_kernel(copy, stream);
  } else {
    copy_by_engine(copy, stream);
  }
}

}  // namespace

}  // namespace vllm_mimo

STABLE_TORCH_LIBRARY_IMPL(vllm_mimo, CUDA, m) {
  m.impl("copy_blocks", TORCH_BOX(&vllm_mimo::copy_blocks_cuda));
}
