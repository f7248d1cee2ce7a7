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

  const uint8_t* source(int64_t i) const { return src.base + pairs[2 * i] * src.stride; }
  uint8_t* target(int64_t i) const { return dst.base + pairs[2 * i + 1] * dst.stride; }
};

// How many pairs from `first` on, before `last`, are neighbours in both buffers without a gap, so
// that one copy does them all. At least 1.
inline int64_t run_length(const BlockCopy& copy, int64_t first, int64_t last) {
  if (copy.dst.stride != copy.bytes || copy.src.stride != copy.bytes) return 1;
  const int64_t* start = copy.pairs + 2 * first;
  int64_t run = 1;
  while (first + run < last && start[2 * run] == start[0] + run &&
         start[2 * run + 1] == start[1] + run) {
    ++run;
  }
  return run;
}

// Checks every pair against both buffers. Throws, naming the first pair that does not fit.
BlockCopy checked_copy(
    const Tensor& dst, const Tensor& src, const Tensor& pairs, int64_t block_bytes,
    int64_t dst_offset, int64_t dst_stride, int64_t src_offset, int64_t src_stride);

// Buffers on the CPU. 0 threads: as many as pay.
void copy_on_cpu(const BlockCopy& copy, int64_t threads);

}  // namespace vllm_mimo
