// For tests: what a limit of the process changes.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace ringway::test {

// ulimit -n, for a scope.
class OpenFilesLimit {
 public:
  explicit OpenFilesLimit(rlim_t soft) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit changed = before_;
    changed.rlim_cur = soft;
    set_ = ::setrlimit(RLIMIT_NOFILE, &changed) == 0;
  }
  ~OpenFilesLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  OpenFilesLimit(const OpenFilesLimit&) = delete;
  OpenFilesLimit& operator=(const OpenFilesLimit&) = delete;

  // False if the hard limit is lower.
  [[nodiscard]] bool set() const { return set_; }

 private:
  rlimit before_{};
  bool set_ = false;
};

// No thread can be had meanwhile: there is no address space for its stack (unless the C library has one left over).
// Sanitizers don't survive it.
class NoThreads {
 public:
  NoThreads() {
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &before_), 0);
    rlimit none = before_;
    none.rlim_cur = 1;
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &none), 0);
  }
  ~NoThreads() { EXPECT_EQ(::setrlimit(RLIMIT_AS, &before_), 0); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr bool kPossible = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  static constexpr bool kPossible = false;
#else
  static constexpr bool kPossible = true;
#endif
#else
  static constexpr bool kPossible = true;
#endif

 private:
  rlimit before_{};
};

}  // namespace ringway::test
