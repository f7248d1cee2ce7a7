// Block copies where at least one buffer is on a GPU, on the current stream.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
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
    copy_kernel(Layout dst, Layout src, Pairs pairs, int count, int64_t bytes) {
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    copy_one_block(
        dst, src, pairs.value[2 * i], pairs.value[2 * i + 1], bytes, threadIdx.x, kThreads);
  }
}

// The address under which a kernel reaches a buffer; null for memory that it cannot reach.
uint8_t* reachable(const Tensor& tensor, uint8_t* pointer) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return static_cast<uint8_t*>(attributes.devicePointer);
}

void copy_by_kernel(BlockCopy copy, cudaStream_t stream) {
  for (int64_t first = 0; first < copy.count; first += kPairsPerLaunch) {
    Pairs pairs;
    const int count = static_cast<int>(std::min<int64_t>(kPairsPerLaunch, copy.count - first));
    std::copy_n(copy.pairs + 2 * first, 2 * count, pairs.value);
    copy_kernel<<<std::min(count, kTeams), kThreads, 0, stream>>>(
        copy.dst, copy.src, pairs, count, copy.bytes);
    check(cudaGetLastError(), "launching the block copy");
  }
}

// One call of the driver a run of neighbouring blocks; the copy engines do the work.
void copy_by_engine(const BlockCopy& copy, cudaStream_t stream) {
  const bool dense = copy.dst.stride == copy.bytes && copy.src.stride == copy.bytes;
  for (int64_t i = 0; i < copy.count;) {
    const int64_t source = copy.pairs[2 * i], target = copy.pairs[2 * i + 1];
    int64_t run = 1;
    while (dense && i + run < copy.count && copy.pairs[2 * (i + run)] == source + run &&
           copy.pairs[2 * (i + run) + 1] == target + run) {
      ++run;
    }
    check(
        cudaMemcpyAsync(
            copy.dst.base + target * copy.dst.stride, copy.src.base + source * copy.src.stride,
            run * copy.bytes, cudaMemcpyDefault, stream),
        "copying blocks");
    i += run;
  }
}

}  // namespace

void copy_blocks_cuda(
    Tensor dst, const Tensor& src, const Tensor& pairs, int64_t block_bytes, int64_t dst_offset,
    int64_t dst_stride, int64_t src_offset, int64_t src_stride, int64_t threads) {
  BlockCopy copy = checked_copy(
      dst, src, pairs, block_bytes, dst_offset, dst_stride, src_offset, src_stride);
  const int device = dst.is_cuda() ? dst.get_device() : src.get_device();
  void* raw = nullptr;
  STD_TORCH_CHECK(
      aoti_torch_get_current_cuda_stream(device, &raw) == 0, "no current CUDA stream");
  const cudaStream_t stream = static_cast<cudaStream_t>(raw);
  uint8_t* to = reachable(dst, copy.dst.base);
  uint8_t* from = reachable(src, copy.src.base);
  if (to != nullptr && from != nullptr && block_bytes < kBatchFrom) {
    copy.dst.base = to;
    copy.src.base = from;
    copy_by_kernel(copy, stream);
  } else {
    copy_by_engine(copy, stream);
  }
}

}  // namespace vllm_mimo

STABLE_TORCH_LIBRARY_IMPL(vllm_mimo, CUDA, m) {
  m.impl("copy_blocks", TORCH_BOX(&vllm_mimo::copy_blocks_cuda));
}
