// Why the kernel refuses us an io_uring, in words that tell an administrator what to change.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringway {

struct RefusalFacts {
  int error = 0;                               // errno of the call that was refused
  std::string call;                            // its name
  std::optional<int> disabled_setting;         // kernel.io_uring_disabled (Linux 6.6 and newer)
  std::optional<std::uint64_t> memlock_bytes;  // RLIMIT_MEMLOCK; none: unlimited
  std::string release;                         // of the kernel
};

// Reads the facts from this system. Any thread.
[[nodiscard]] RefusalFacts gather_refusal_facts(int error, std::string_view call);
[[nodiscard]] std::string explain_io_uring_refusal(const RefusalFacts& facts);

// As uname -r.
[[nodiscard]] std::string kernel_release();

}  // namespace ringway
