// The operations and their CPU versions. CUDA versions are in copy_cuda.cu.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>

#include "copy_blocks.h"

namespace vllm_mimo {

namespace {

// Whether block `block` ends within `size` bytes. Divides, since a product may exceed 64 bits.
bool fits(int64_t block, int64_t size, int64_t offset, int64_t stride, int64_t bytes) {
  if (block < 0 || bytes > size || offset > size - bytes) return false;
  return stride == 0 || block <= (size - bytes - offset) / stride;
}

bool is_raw_buffer(const Tensor& tensor) {
  return tensor.scalar_type() == torch::headeronly::ScalarType::Byte && tensor.dim() == 1 &&
         tensor.is_contiguous();
}

}  // namespace

BlockCopy checked_copy(
    const Tensor& dst, const Tensor& src, const Tensor& pairs, int64_t block_bytes,
    int64_t dst_offset, int64_t dst_stride, int64_t src_offset, int64_t src_stride) {
  STD_TORCH_CHECK(
      is_raw_buffer(dst) && is_raw_buffer(src),
      "dst and src must be contiguous 1-D uint8 tensors");
  STD_TORCH_CHECK(
      pairs.is_cpu() && pairs.scalar_type() == torch::headeronly::ScalarType::Long &&
          pairs.dim() == 2 && pairs.size(1) == 2 && pairs.is_contiguous(),
      "pairs must be a contiguous (n, 2) int64 tensor on the CPU");
  STD_TORCH_CHECK(
      block_bytes > 0 && dst_offset >= 0 && src_offset >= 0 && dst_stride >= 0 && src_stride >= 0,
      "block_bytes must be positive, offsets and strides not negative");
  const int64_t count = pairs.size(0);
  const int64_t* pair = static_cast<const int64_t*>(pairs.const_data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t s = pair[2 * i], d = pair[2 * i + 1];
    STD_TORCH_CHECK(
        fits(s, src.numel(), src_offset, src_stride, block_bytes) &&
            fits(d, dst.numel(), dst_offset, dst_stride, block_bytes),
        "pair ", i, " (source block ", s, ", target block ", d, ") is outside the buffers");
  }
  return BlockCopy{
      {static_cast<uint8_t*>(dst.mutable_data_ptr()) + dst_offset, dst_stride},
      {static_cast<uint8_t*>(src.mutable_data_ptr()) + src_offset, src_stride},
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

// What the GPU's kernel does, by its own loop body: `threads` teams of seven threads, in turn.
void copy_blocks_by_kernel_body(
    Tensor dst, const Tensor& src, const Tensor& pairs, int64_t block_bytes, int64_t dst_offset,
    int64_t dst_stride, int64_t src_offset, int64_t src_stride, int64_t threads) {
  const BlockCopy copy = checked_copy(
      dst, src, pairs, block_bytes, dst_offset, dst_stride, src_offset, src_stride);
  if (copy.count == 0) return;
  constexpr int kTeamSize = 7;
  const int count = static_cast<int>(copy.count);
  const int teams = static_cast<int>(std::clamp<int64_t>(threads, 1, 1024));
  const int slices = slices_of(count, copy.bytes, teams, kTeamSize);
  for (int team = 0; team < teams; ++team) {
    for (int thread = 0; thread < kTeamSize; ++thread) {
      copy_share(
          copy.dst, copy.src, copy.pairs, count, copy.bytes, slices, team, teams, thread,
          kTeamSize);
    }
  }
}

bool has_cuda() {
#ifdef MIMO_WITH_CUDA
  return true;
#else
  return false;
#endif
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

STABLE_TORCH_LIBRARY_IMPL(vllm_mimo, CompositeExplicitAutograd, m) {
  m.impl("has_cuda", TORCH_BOX(&vllm_mimo::has_cuda));
}
