#include "base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace ringway {

void check_failed(const char* expression, const char* file, int line) noexcept {
  static_cast<void>(std::fprintf(stderr, "ringway: internal error at %s:%d: %s\n", file, line, expression));
  std::abort();
}

}  // namespace ringway
