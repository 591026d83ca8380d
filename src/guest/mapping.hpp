// One mmap of a piece of guest memory, shared by every region map that contains it.
//
// Owner: created and destroyed on the control thread; the memory itself is touched by workers and the kernel. A Mapping
// lives as long as a RegionMap that names it: replacing a memory table keeps the mapping of each region
// whose (device, inode, file offset, size, guest address) is the same, so rings on it need no drain.
//
// The memory behind it can vanish: the front-end may truncate its file. The kernel then sends SIGBUS to whoever touches it,
// and EFAULT to a system call. guest/sigbus.hpp turns the signal into `poisoned()`.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/foreign.hpp"
#include "base/result.hpp"
#include "guest/address.hpp"

namespace ringway {

class Mapping {
 public:
  // What it is mapped for, as errors name it.
  enum class Purpose : std::uint8_t { guest_memory, dirty_log, inflight_region };

  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    std::uint64_t file_offset = 0;
    std::uint64_t bytes = 0;
    GuestAddress guest;
    UserAddress user;
    bool operator==(const Identity&) const = default;
  };

  // Maps `bytes` of `fd` from `file_offset` on, readable and writable, shared. The fd may be closed afterwards: the mapping
  // keeps one of its own. What it takes is counted in `holdings`, which lets it go at the end; null: not counted, and it
  // ends where the last reference does. Errors: a size of zero or one that overflows, no regular file or one on FUSE or a
  // network (before Linux 5.8: on anything but memory), a file shorter than offset + bytes, more than this front-end's share
  // of the address space, mmap's own; no room in the table of guest/sigbus.hpp. hugetlbfs files are mapped with the
  // alignment that they need. Installs the handler of guest/sigbus.hpp if that wasn't done before.
  [[nodiscard]] static Result<std::shared_ptr<Mapping>> create(int fd, GuestAddress guest, UserAddress user,
                                                               std::uint64_t bytes, std::uint64_t file_offset,
                                                               std::shared_ptr<ForeignHoldings> holdings = nullptr);
  // The same for memory that is shared with the front-end but isn't the guest's: it has no address there.
  [[nodiscard]] static Result<std::shared_ptr<Mapping>> create_for(Purpose purpose, int fd, std::uint64_t bytes,
                                                                   std::uint64_t file_offset,
                                                                   std::shared_ptr<ForeignHoldings> holdings = nullptr);
  // Anonymous memory as guest memory, for tests and benches.
  [[nodiscard]] static Result<std::shared_ptr<Mapping>> create_anonymous(GuestAddress guest, UserAddress user,
                                                                         std::uint64_t bytes);

  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // What `create` would give for these arguments, to recognise an unchanged region. Errors: those of
  // `create` about the kind of file.
  [[nodiscard]] static Result<Identity> identify(int fd, GuestAddress guest, UserAddress user, std::uint64_t bytes,
                                                 std::uint64_t file_offset);

  [[nodiscard]] const Identity& identity() const { return identity_; }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return identity_.bytes; }
  // True once the file behind the memory was found truncated. Any thread.
  [[nodiscard]] bool poisoned() const;

 private:
  Mapping() = default;

  // `wanted` has all but the file's numbers.
  [[nodiscard]] static Result<std::shared_ptr<Mapping>> create(Purpose purpose, int fd, const Identity& wanted,
                                                               std::shared_ptr<ForeignHoldings> holdings);
  [[nodiscard]] Result<> map(int fd, int flags, std::uint64_t aligned_offset, std::size_t length, std::size_t skip,
                             std::size_t page_bytes);

  Purpose purpose_ = Purpose::guest_memory;
  Identity identity_;
  std::shared_ptr<ForeignHoldings> holdings_;
  ForeignFd file_;
  std::byte* data_ = nullptr;  // first byte of the region (may lie inside the mmap, for hugetlbfs alignment)
  void* mmap_address_ = nullptr;
  std::size_t mmap_bytes_ = 0;
  std::size_t page_bytes_ = 0;
  int sigbus_slot_ = -1;
};

// For the start of a process that serves guests: what to warn of if its limit of address space (ulimit -v) leaves so little
// that not even one small guest's memory could be mapped; absent: nothing. On the thread that will create mappings.
[[nodiscard]] std::optional<std::string> address_space_warning();

}  // namespace ringway
