// memcpy past the caches: for copies that are larger than they are, as nothing is read before it is
// written over and nothing useful is driven out.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vllm_mimo {

#if defined(__x86_64__)

inline bool can_stream() { return __builtin_cpu_supports("avx2"); }

// Call stream_fence() before another thread may read what was written.
__attribute__((target("avx2"))) inline void stream_copy(
    uint8_t* to, const uint8_t* from, int64_t bytes) {
  constexpr int64_t kWord = sizeof(__m256i);
  const int64_t head = -reinterpret_cast<intptr_t>(to) & (kWord - 1);
  if (bytes < head + 4 * kWord) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  int64_t done = head;
  for (; done + 4 * kWord <= bytes; done += 4 * kWord) {
    const __m256i* source = reinterpret_cast<const __m256i*>(from + done);
    __m256i* target = reinterpret_cast<__m256i*>(to + done);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1),
                  c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  std::memcpy(to + done, from + done, bytes - done);
}

inline void stream_fence() { _mm_sfence(); }

#else

inline bool can_stream() { return false; }
inline void stream_copy(uint8_t* to, const uint8_t* from, int64_t bytes) {
  std::memcpy(to, from, bytes);
}
inline void stream_fence() {}

#endif

}  // namespace vllm_mimo
