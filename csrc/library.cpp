// The operations and their CPU versions. CUDA versions are in copy_cuda.cu.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include "copy_blocks.h"

namespace vllm_mimo {

BlockCopy checked_copy(
    const Tensor& dst, const Tensor& src, const Tensor& pairs, int64_t block_bytes,
    int64_t dst_offset, int64_t dst_stride, int64_t src_offset, int64_t src_stride) {
  using torch::headeronly::ScalarType;
  STD_TORCH_CHECK(
      dst.scalar_type() == ScalarType::Byte && src.scalar_type() == ScalarType::Byte &&
          dst.dim() == 1 && src.dim() == 1 && dst.is_contiguous() && src.is_contiguous(),
      "dst and src must be contiguous 1-D uint8 tensors");
  STD_TORCH_CHECK(
      pairs.is_cpu() && pairs.scalar_type() == ScalarType::Long && pairs.dim() == 2 &&
          pairs.size(1) == 2 && pairs.is_contiguous(),
      "pairs must be a contiguous (n, 2) int64 tensor on the CPU");
  STD_TORCH_CHECK(
      block_bytes > 0 && dst_offset >= 0 && src_offset >= 0 && dst_stride >= 0 && src_stride >= 0,
      "block_bytes must be positive, offsets and strides not negative");
  const int64_t count = pairs.size(0);
  const int64_t* pair = static_cast<const int64_t*>(pairs.const_data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t s = pair[2 * i], d = pair[2 * i + 1];
    STD_TORCH_CHECK(
        s >= 0 && d >= 0 && src_offset + s * src_stride + block_bytes <= src.numel() &&
            dst_offset + d * dst_stride + block_bytes <= dst.numel(),
        "pair ", i, " (source block ", s, ", target block ", d, ") is outside the buffers");
  }
  return BlockCopy{
      {static_cast<uint8_t*>(dst.data_ptr()) + dst_offset, dst_stride},
      {static_cast<uint8_t*>(src.data_ptr()) + src_offset, src_stride},
      pair,
      count,
      block_bytes};
}

void copy_blocks_cpu(
    Tensor dst, const Tensor& src, const Tensor& pairs, int64_t block_bytes, int64_t dst_offset,
    int64_t dst_stride, int64_t src_offset, int64_t src_stride, int64_t threads) {
  copy_on_cpu(
      checked_copy(
          dst, src, pairs, block_bytes, dst_offset, dst_stride, src_offset, src_stride),
      threads);
}

// What the GPU's kernel does, by its own loop body, a team of `threads` after another.
void copy_blocks_by_kernel_body(
    Tensor dst, const Tensor& src, const Tensor& pairs, int64_t block_bytes, int64_t dst_offset,
    int64_t dst_stride, int64_t src_offset, int64_t src_stride, int64_t threads) {
  const BlockCopy copy = checked_copy(
      dst, src, pairs, block_bytes, dst_offset, dst_stride, src_offset, src_stride);
  for (int64_t i = 0; i < copy.count; ++i) {
    for (int thread = 0; thread < threads; ++thread) {
      copy_one_block(
          copy.dst, copy.src, copy.pairs[2 * i], copy.pairs[2 * i + 1], copy.bytes, thread,
          static_cast<int>(threads));
    }
  }
}

}  // namespace vllm_mimo

#define COPY_ARGUMENTS                                                                    \
  "(Tensor(a!) dst, Tensor src, Tensor pairs, int block_bytes, int dst_offset, int "      \
  "dst_stride, int src_offset, int src_stride, int threads) -> ()"

STABLE_TORCH_LIBRARY(vllm_mimo, m) {
  m.def("copy_blocks" COPY_ARGUMENTS);
  m.def("copy_blocks_by_kernel_body" COPY_ARGUMENTS);
  m.def("has_cuda() -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(vllm_mimo, CPU, m) {
  m.impl("copy_blocks", TORCH_BOX(&vllm_mimo::copy_blocks_cpu));
  m.impl("copy_blocks_by_kernel_body", TORCH_BOX(&vllm_mimo::copy_blocks_by_kernel_body));
}

namespace vllm_mimo {
bool has_cuda() {
#ifdef MIMO_WITH_CUDA
  return true;
#else
  return false;
#endif
}
}  // namespace vllm_mimo

STABLE_TORCH_LIBRARY_IMPL(vllm_mimo, CompositeExplicitAutograd, m) {
  m.impl("has_cuda", TORCH_BOX(&vllm_mimo::has_cuda));
}
