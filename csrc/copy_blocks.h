// Copies of many KV blocks by index between two buffers; see vllm_mimo/native/blocks.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#include "copy_body.h"

namespace vllm_mimo {

using torch::stable::Tensor;

struct BlockCopy {
  Layout dst, src;
  const int64_t* pairs;  // (source block, target block) each
  int64_t count;
  int64_t bytes;  // of a block
};

// Checks every pair against both buffers. Throws, naming the first pair that does not fit.
BlockCopy checked_copy(
    const Tensor& dst, const Tensor& src, const Tensor& pairs, int64_t block_bytes,
    int64_t dst_offset, int64_t dst_stride, int64_t src_offset, int64_t src_stride);

// Buffers on the CPU. 0 threads: as many as pay.
void copy_on_cpu(const BlockCopy& copy, int64_t threads);

}  // namespace vllm_mimo
