#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "copy_blocks.h"

namespace vllm_mimo {

namespace {

constexpr int64_t kBytesPerThread = 4 << 20;  // a thread costs about as much as copying 0.2 MB
constexpr int64_t kMostThreads = 8;

// Pairs first to last - 1; neighbours in both buffers become one copy.
void copy_range(const BlockCopy& copy, int64_t first, int64_t last) {
  const bool dense = copy.dst.stride == copy.bytes && copy.src.stride == copy.bytes;
  for (int64_t i = first; i < last;) {
    const int64_t source = copy.pairs[2 * i];
    const int64_t target = copy.pairs[2 * i + 1];
    int64_t run = 1;
    while (dense && i + run < last && copy.pairs[2 * (i + run)] == source + run &&
           copy.pairs[2 * (i + run) + 1] == target + run) {
      ++run;
    }
    std::memcpy(
        copy.dst.base + target * copy.dst.stride, copy.src.base + source * copy.src.stride,
        run * copy.bytes);
    i += run;
  }
}

}  // namespace

void copy_on_cpu(const BlockCopy& copy, int64_t threads) {
  if (threads <= 0) {
    const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
    threads = std::min({cores, kMostThreads, copy.count * copy.bytes / kBytesPerThread});
  }
  threads = std::clamp<int64_t>(threads, 1, std::max<int64_t>(1, copy.count));
  std::vector<std::thread> team;
  for (int64_t t = 1; t < threads; ++t) {
    team.emplace_back(
        copy_range, std::cref(copy), copy.count * t / threads, copy.count * (t + 1) / threads);
  }
  copy_range(copy, 0, copy.count / threads);
  for (std::thread& thread : team) thread.join();
}

}  // namespace vllm_mimo
