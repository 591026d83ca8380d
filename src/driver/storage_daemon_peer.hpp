// For tests: a qemu-storage-daemon with one vhost-user-blk export, as the foreign back-end that the driver, the bench and
// the check are tried against. Lives in a directory of its own; ends with the object.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

extern char** environ;  // NOLINT: of the C library

namespace ringway {

class StorageDaemonPeer {
 public:
  // Null if qemu-storage-daemon isn't installed: the test then skips, saying so. `file_bytes` 0: a null disk of 1 GiB that
  // leaves read buffers as they are; else a file of that size.
  static std::unique_ptr<StorageDaemonPeer> start(std::uint64_t file_bytes, unsigned queues = 2, bool writable = true) {
    std::string pattern = std::filesystem::temp_directory_path() / "ringway-peer-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) {
      return nullptr;
    }
    std::unique_ptr<StorageDaemonPeer> peer(new StorageDaemonPeer());
    peer->directory_ = pattern;
    peer->socket_path_ = pattern + "/blk.sock";
    std::string node = "driver=null-co,node-name=disk,size=1073741824,read-zeroes=off";
    if (file_bytes != 0) {
      const std::string image = pattern + "/disk.img";
      const int fd = open(image.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
      const bool sized = fd >= 0 && ftruncate(fd, static_cast<off_t>(file_bytes)) == 0;
      close(fd);
      if (!sized) {
        return nullptr;
      }
      node = fmt::format("driver=file,node-name=disk,discard=unmap,filename={}", image);
    }
    std::vector<std::string> words = {
        "qemu-storage-daemon", "--blockdev", node, "--export",
        fmt::format("type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={},num-queues={},writable={}",
                    peer->socket_path_, queues, writable ? "on" : "off")};
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    if (posix_spawnp(&peer->pid_, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) {
      peer->pid_ = -1;
      return nullptr;
    }
    return peer;
  }
  static constexpr const char* kMissing =
      "qemu-storage-daemon isn't installed (Debian package qemu-system-common or qemu-utils)";

  StorageDaemonPeer(const StorageDaemonPeer&) = delete;
  StorageDaemonPeer& operator=(const StorageDaemonPeer&) = delete;
  ~StorageDaemonPeer() {
    stop();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  void stop() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  StorageDaemonPeer() = default;
  std::string directory_, socket_path_;
  pid_t pid_ = -1;
};

}  // namespace ringway
