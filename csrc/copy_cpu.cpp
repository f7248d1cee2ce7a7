// Block copies between buffers in host memory.
#include <algorithm>
#include <cstring>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "copy_blocks.h"
#include "stream_copy.h"

namespace vllm_mimo {

namespace {

constexpr int64_t kBytesPerThread = 4 << 20;  // a thread costs about as much as copying 0.2 MB
constexpr int64_t kMostThreads = 8;
// Copies past the caches: measured (tests/benchmarks/bench_copy.py) 1.2 to 1.6 times as fast from
// 16 MiB on, slower below 8 MiB.
constexpr int64_t kStreamFrom = 16 << 20;
constexpr int64_t kStreamBlock = 4 << 10;

// Pairs first to last - 1; neighbours in both buffers become one copy.
void copy_range(const BlockCopy& copy, int64_t first, int64_t last, bool stream) {
  for (int64_t i = first; i < last;) {
    const int64_t run = run_length(copy, i, last);
    if (stream) {
      stream_copy(copy.target(i), copy.source(i), run * copy.bytes);
    } else {
      std::memcpy(copy.target(i), copy.source(i), run * copy.bytes);
    }
    i += run;
  }
  if (stream) stream_fence();
}

}  // namespace

void copy_on_cpu(const BlockCopy& copy, int64_t threads) {
  if (threads <= 0) {
    const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
    threads = std::min({cores, kMostThreads, copy.count * copy.bytes / kBytesPerThread});
  }
  threads = std::clamp<int64_t>(threads, 1, std::max<int64_t>(1, copy.count));
  const bool stream = copy.bytes >= kStreamBlock && copy.count * copy.bytes >= kStreamFrom &&
                      can_stream();
  std::vector<std::thread> team;
  team.reserve(threads - 1);  // so that nothing but starting a thread can fail below
  int64_t begun = copy.count / threads;
  const int64_t own = begun;
  try {
    for (int64_t t = 1; t < threads; ++t) {
      const int64_t end = copy.count * (t + 1) / threads;
      team.emplace_back(copy_range, std::cref(copy), begun, end, stream);
      begun = end;
    }
  } catch (const std::system_error&) {
    // The system has no thread to give (a container's limit): what is left is copied here.
  }
  copy_range(copy, 0, own, stream);
  copy_range(copy, begun, copy.count, stream);
  for (std::thread& thread : team) thread.join();
}

}  // namespace vllm_mimo
