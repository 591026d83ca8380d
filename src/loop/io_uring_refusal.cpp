#include "loop/io_uring_refusal.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cerrno>
#include <fstream>

#include "base/result.hpp"

namespace ringway {

std::string kernel_release() {
  utsname names{};
  return uname(&names) == 0 ? names.release : "unknown";
}

RefusalFacts gather_refusal_facts(int error, std::string_view call) {
  RefusalFacts facts{
      .error = error, .call = std::string(call), .disabled_setting = {}, .memlock_bytes = {}, .release = kernel_release()};
  std::ifstream setting("/proc/sys/kernel/io_uring_disabled");
  if (int value = 0; setting >> value) {
    facts.disabled_setting = value;
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    facts.memlock_bytes = limit.rlim_cur;
  }
  return facts;
}

std::string explain_io_uring_refusal(const RefusalFacts& facts) {
  switch (facts.error) {
    case ENOSYS:
      return fmt::format("{} is not available: this kernel ({}) was built without io_uring, or a sandbox hides it",
                         facts.call, facts.release);
    case EPERM:
    case EACCES:
      if (facts.disabled_setting == 2) {
        return "io_uring is forbidden for every process by the sysctl kernel.io_uring_disabled = 2; "
               "set it to 0 (sysctl -w kernel.io_uring_disabled=0)";
      }
      if (facts.disabled_setting == 1) {
        return "io_uring is forbidden for unprivileged processes by the sysctl kernel.io_uring_disabled = 1; "
               "set it to 0, or add this user's group as kernel.io_uring_group";
      }
      return fmt::format(
          "{} is forbidden, most likely by a seccomp filter or a security module (containers do so by default); "
          "allow io_uring_setup, io_uring_enter and io_uring_register",
          facts.call);
    case ENOMEM:
      return facts.memlock_bytes.has_value()
                 ? fmt::format("{} found no memory: RLIMIT_MEMLOCK is {} KiB; raise it (ulimit -l, LimitMEMLOCK=)",
                               facts.call, *facts.memlock_bytes / 1024)
                 : fmt::format(
                       "{} found no memory, though RLIMIT_MEMLOCK is unlimited: the host or the control group is short "
                       "of it",
                       facts.call);
    case EMFILE:
    case ENFILE:
      return fmt::format("{} found no free file descriptor; raise the limit of open files (ulimit -n, LimitNOFILE=)",
                         facts.call);
    case EINVAL:
      return fmt::format("this kernel ({}) is too old for our use of io_uring; 5.19 or newer is needed", facts.release);
    default:
      return fail_errno(facts.error, fmt::format("{} failed", facts.call)).error().message;
  }
}

}  // namespace ringway
