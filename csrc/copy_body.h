// One block of a copy by index, as a team of threads does it: the same code on GPU and host.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MIMO_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MIMO_HOST_DEVICE inline
#endif

namespace vllm_mimo {

struct alignas(16) Bytes16 {
  uint64_t low, high;
};

// Where block b lies: base + b * stride.
struct Layout {
  uint8_t* base;
  int64_t stride;
};

// Thread `thread` of `threads` copies its part of one block. Whole 16-byte words where both ends are
// aligned so, single bytes elsewhere.
MIMO_HOST_DEVICE void copy_one_block(
    Layout dst, Layout src, int64_t src_block, int64_t dst_block, int64_t bytes, int thread,
    int threads) {
  uint8_t* to = dst.base + dst_block * dst.stride;
  const uint8_t* from = src.base + src_block * src.stride;
  int64_t done = 0;
  if (((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & 15) == 0) {
    const int64_t words = bytes / 16;
    const Bytes16* source = reinterpret_cast<const Bytes16*>(from);
    Bytes16* target = reinterpret_cast<Bytes16*>(to);
    for (int64_t i = thread; i < words; i += threads) target[i] = source[i];
    done = words * 16;
  }
  for (int64_t i = done + thread; i < bytes; i += threads) to[i] = from[i];
}

// What one thread block of the kernel does, thread `thread` of `threads` in it. `team` of `teams`
// thread blocks: each block of KV is cut into `slices`, and the teams take the slices in turn.
MIMO_HOST_DEVICE void copy_share(
    Layout dst, Layout src, const int64_t* pairs, int count, int64_t bytes, int slices, int team,
    int teams, int thread, int threads) {
  for (int share = team; share < count * slices; share += teams) {
    const int pair = share / slices;
    copy_one_block(
        dst, src, pairs[2 * pair], pairs[2 * pair + 1], bytes,
        (share % slices) * threads + thread, slices * threads);
  }
}

// Few blocks of KV are cut, so that all teams have work; a slice has a word for each thread.
MIMO_HOST_DEVICE int slices_of(int count, int64_t bytes, int teams, int threads) {
  const int64_t wanted = count < teams ? (teams + count - 1) / count : 1;
  const int64_t most = bytes / (16 * static_cast<int64_t>(threads));
  const int64_t slices = wanted < most ? wanted : most;
  return slices > 1 ? static_cast<int>(slices) : 1;
}

}  // namespace vllm_mimo
