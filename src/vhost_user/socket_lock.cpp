#include "vhost_user/socket_lock.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace ringway::vhost_user {

namespace {

constexpr mode_t kLockMode = 0600;

// True if `fd` is still what `path` names: its owner removes the lock file before letting go of it.
bool names(const std::string& path, int fd) {
  struct stat by_path{};
  struct stat by_fd{};
  return ::stat(path.c_str(), &by_path) == 0 && ::fstat(fd, &by_fd) == 0 && by_path.st_dev == by_fd.st_dev &&
         by_path.st_ino == by_fd.st_ino;
}

// "pid 17 (ringway)" for the process that holds the lock of `file`; "another process" where the kernel doesn't tell: it lies
// in another pid namespace, or on a file system with device numbers of its own.
std::string holder_of(int file) {
  std::string holder = "another process";
  struct stat locked{};
  if (::fstat(file, &locked) != 0) {
    return holder;
  }
  // 1: FLOCK  ADVISORY  WRITE 17 08:01:1234 0 EOF
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    int pid = 0;
    unsigned major_number = 0;
    unsigned minor_number = 0;
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s WRITE %d %x:%x:%lu", &pid, &major_number, &minor_number, &inode) != 4 ||
        inode != locked.st_ino || makedev(major_number, minor_number) != locked.st_dev || pid <= 0) {
      continue;
    }
    std::string command;
    std::ifstream comm(fmt::format("/proc/{}/comm", pid));
    std::getline(comm, command);
    holder = pid == ::getpid() ? "this process itself" : fmt::format("pid {} ({})", pid, command);
  }
  return holder;
}

Result<UniqueFd> lock_file(const std::string& path, const std::string& lock_path) {
  for (;;) {
    UniqueFd fd(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kLockMode));
    if (!fd) {
      return fail_errno(
          errno, fmt::format("can't make the lock file {}: check that the directory exists and is writable", lock_path));
    }
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        return fail(fmt::format("socket {} is in use: {} holds {}", path, holder_of(fd.get()), lock_path));
      }
      return fail_errno(errno, fmt::format("can't lock {}", lock_path));
    }
    if (names(lock_path, fd.get())) {
      return fd;
    }
  }
}

// A listener without a lock of ours, e.g. a VMM with server=on.
bool is_served(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int outcome = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  // EAGAIN: its backlog is full. EPROTOTYPE: a datagram socket. Only a refusal says that nobody is there.
  return outcome == 0 || errno != ECONNREFUSED;
}

}  // namespace

Result<SocketLock> SocketLock::take(const std::string& path) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return fail(fmt::format("socket path \"{}\" has {} bytes, 1 to {} are possible", path, path.size(),
                            sizeof(address.sun_path) - 1));
  }
  std::string lock_path = path + ".lock";
  RW_TRY_ASSIGN(UniqueFd fd, lock_file(path, lock_path));
  SocketLock lock(std::move(lock_path), std::move(fd));
  struct stat found{};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) {
      return lock;
    }
    return fail_errno(errno, fmt::format("can't look at {}", path));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return fail(fmt::format("{} exists and is not a socket: choose another path, or remove it", path));
  }
  if (is_served(path)) {
    return fail(fmt::format("socket {} is in use: another program listens on it", path));
  }
  if (::unlink(path.c_str()) != 0) {
    return fail_errno(errno, fmt::format("can't replace the stale socket {}", path));
  }
  return lock;
}

SocketLock::~SocketLock() {
  // Removed first, so that whoever opens it anew locks a file that the path still names.
  if (fd_) {
    ::unlink(lock_path_.c_str());
  }
}

}  // namespace ringway::vhost_user
