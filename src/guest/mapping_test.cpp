#include "guest/mapping.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/test_limit.hpp"
#include "base/test_soon.hpp"
#include "base/time.hpp"
#include "guest/access.hpp"
#include "guest/sigbus.hpp"
#include "guest/test_memory.hpp"

namespace ringway {
namespace {

using test::kPage;
using test::memory_file;
using test::soon;
using ::testing::HasSubstr;

constexpr GuestAddress kGuest{0x1'0000'0000};
constexpr UserAddress kUser{0x7f00'0000'0000};

std::string error_of(const Result<std::shared_ptr<Mapping>>& result) {
  return result.has_value() ? "no error" : result.error().message;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += entry.path().empty() ? 0U : 1U;
  }
  return count;
}

std::size_t lines_of(const char* path) {
  std::ifstream file(path);
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    ++count;
  }
  return count;
}

// The lines of /proc/self/smaps that describe the mapping at `address`.
std::string vm_flags_of(const void* address) {
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = reinterpret_cast<std::uintptr_t>(address) >= begin && reinterpret_cast<std::uintptr_t>(address) < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line;
    }
  }
  return "";
}

TEST(Mapping, SharesTheFilesBytesFromItsOffset) {
  const UniqueFd file = memory_file(4 * kPage);
  ASSERT_EQ(::pwrite(file.get(), "guest", 5, 2 * kPage), 5);
  auto mapping = Mapping::create(file.get(), kGuest, kUser, 2 * kPage, 2 * kPage);
  ASSERT_TRUE(mapping.has_value()) << error_of(mapping);
  EXPECT_EQ(std::memcmp((*mapping)->data(), "guest", 5), 0);
  EXPECT_EQ((*mapping)->bytes(), 2 * kPage);
  EXPECT_FALSE((*mapping)->poisoned());

  std::memcpy((*mapping)->data() + 2 * kPage - 4, "back", 4);
  char read_back[4];
  ASSERT_EQ(::pread(file.get(), read_back, 4, 4 * kPage - 4), 4);
  EXPECT_EQ(std::memcmp(read_back, "back", 4), 0);
}

TEST(Mapping, OutlivesTheDescriptor) {
  UniqueFd file = memory_file(kPage);
  auto mapping = Mapping::create(file.get(), kGuest, kUser, kPage, 0);
  ASSERT_TRUE(mapping.has_value()) << error_of(mapping);
  file.reset();
  guest::store<std::uint32_t>((*mapping)->data(), 0x12345678);
  EXPECT_EQ(guest::load<std::uint32_t>((*mapping)->data()), 0x12345678U);
}

TEST(Mapping, UnalignedOffsetPointsIntoThePage) {
  const UniqueFd file = memory_file(2 * kPage);
  ASSERT_EQ(::pwrite(file.get(), "x", 1, 5000), 1);
  auto mapping = Mapping::create(file.get(), kGuest, kUser, 100, 5000);
  ASSERT_TRUE(mapping.has_value()) << error_of(mapping);
  EXPECT_EQ((*mapping)->data()[0], std::byte{'x'});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*mapping)->data()) % kPage, 5000 % kPage);
}

TEST(Mapping, IsLeftOutOfCoreDumps) {
  const UniqueFd file = memory_file(kPage);
  auto mapping = Mapping::create(file.get(), kGuest, kUser, kPage, 0);
  ASSERT_TRUE(mapping.has_value()) << error_of(mapping);
  EXPECT_THAT(vm_flags_of((*mapping)->data()), HasSubstr(" dd"));
}

TEST(Mapping, RefusesSizesThatTheFileDoesNotHave) {
  const UniqueFd file = memory_file(2 * kPage);
  EXPECT_TRUE(Mapping::create(file.get(), kGuest, kUser, 2 * kPage, 0).has_value());
  EXPECT_TRUE(Mapping::create(file.get(), kGuest, kUser, 1, 2 * kPage - 1).has_value());

  EXPECT_THAT(error_of(Mapping::create(file.get(), kGuest, kUser, 0, 0)), HasSubstr("is empty"));
  EXPECT_THAT(error_of(Mapping::create(file.get(), kGuest, kUser, 2 * kPage + 1, 0)), HasSubstr("only 8192 bytes"));
  EXPECT_THAT(error_of(Mapping::create(file.get(), kGuest, kUser, 1, 2 * kPage)), HasSubstr("only 8192 bytes"));
  EXPECT_THAT(error_of(Mapping::create(file.get(), kGuest, kUser, kPage, kPage + 1)), HasSubstr("only 8192 bytes"));
}

TEST(Mapping, RefusesSumsThatOverflow) {
  const UniqueFd file = memory_file(2 * kPage);
  // offset + size = 4096 modulo 2^64
  EXPECT_THAT(error_of(Mapping::create(file.get(), kGuest, kUser, 2 * kPage, UINT64_MAX - kPage + 1)),
              HasSubstr("only 8192 bytes"));
  EXPECT_THAT(error_of(Mapping::create(file.get(), GuestAddress{0}, UserAddress{0}, UINT64_MAX, 1)),
              HasSubstr("only 8192 bytes"));
  EXPECT_THAT(error_of(Mapping::create(file.get(), GuestAddress{UINT64_MAX - kPage + 2}, kUser, kPage, 0)),
              HasSubstr("wraps around"));
  EXPECT_THAT(error_of(Mapping::create(file.get(), kGuest, UserAddress{UINT64_MAX - 1}, kPage, 0)),
              HasSubstr("wraps around"));
  // The last page of the address space is a place like others.
  EXPECT_TRUE(Mapping::create(file.get(), GuestAddress{UINT64_MAX - kPage + 1}, kUser, kPage, 0).has_value());

  EXPECT_THAT(error_of(Mapping::create_anonymous(GuestAddress{0}, UserAddress{0}, UINT64_MAX)), HasSubstr("too large"));
  EXPECT_THAT(error_of(Mapping::create_anonymous(GuestAddress{0}, UserAddress{0}, 0)), HasSubstr("is empty"));
}

TEST(Mapping, RefusesWhatIsNoRegularFile) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  EXPECT_THAT(error_of(Mapping::create(reader.get(), kGuest, kUser, kPage, 0)), HasSubstr("not on a regular file"));
  // To look at this one in /proc/self/fdinfo takes a lock that its owner may keep.
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  EXPECT_THAT(error_of(Mapping::create(epoll.get(), kGuest, kUser, kPage, 0)), HasSubstr("not on a regular file"));
  const UniqueFd zero(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(zero);
  EXPECT_THAT(error_of(Mapping::create(zero.get(), kGuest, kUser, kPage, 0)), HasSubstr("not on a regular file"));
  EXPECT_THAT(error_of(Mapping::create(-1, kGuest, kUser, kPage, 0)), HasSubstr("Bad file descriptor"));
}

TEST(Mapping, RefusesAFileThatMayNotBeWritten) {
  const UniqueFd file = memory_file(kPage);
  const UniqueFd read_only(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(read_only);
  const auto mapping = Mapping::create(read_only.get(), kGuest, kUser, kPage, 0);
  ASSERT_FALSE(mapping.has_value());
  EXPECT_EQ(mapping.error().code, EACCES);
}

TEST(Mapping, TakesAFileOfALocalDisk) {
  std::string path = ::testing::TempDir() + "ringway-mapping-XXXXXX";
  const UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  ASSERT_TRUE(file) << std::strerror(errno);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::ftruncate(file.get(), kPage), 0);
  const auto mapping = Mapping::create(file.get(), kGuest, kUser, kPage, 0);
  EXPECT_TRUE(mapping.has_value()) << error_of(mapping);
}

Duration cpu_of_this_thread() {
  rusage used{};
  EXPECT_EQ(::getrusage(RUSAGE_THREAD, &used), 0);
  return Duration::seconds(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         Duration::microseconds(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

// The owner of a file can put as many record locks on it as he likes.
TEST(Mapping, DoesNotReadTheLocksOfAFile) {
  std::string path = ::testing::TempDir() + "ringway-mapping-XXXXXX";
  const UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  ASSERT_TRUE(file) << std::strerror(errno);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::ftruncate(file.get(), kPage), 0);
  const auto cost = [&] {
    const Duration before = cpu_of_this_thread();
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(Mapping::identify(file.get(), kGuest, kUser, kPage, 0));
    }
    return cpu_of_this_thread() - before;
  };
  static_cast<void>(cost());
  const Duration without = cost();
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_len = 1;
  for (int i = 0; i < 4000; ++i) {
    lock.l_start = 2 * (4000 - i);  // from the end, where the kernel's list of them begins
    ASSERT_EQ(::fcntl(file.get(), F_OFD_SETLK, &lock), 0) << std::strerror(errno);
  }
  EXPECT_LT(cost().ns, 10 * without.ns + Duration::milliseconds(100).ns);
}

// Serves one FUSE file, a root that is a regular file, as far as its open(2). After that it answers nothing any more, as an
// attacker would: whoever then asks the file system waits for ever.
class HostileFuse {
 public:
  HostileFuse() : device_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {}
  // Empty, or why there can't be such a file here.
  std::string mount_at(const std::string& path) {
    if (!device_) {
      return "cannot open /dev/fuse";
    }
    // A mount namespace of our own: nobody else sees the mount, and it ends with the process.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return "no right to make a mount namespace";
    }
    const std::string options = "fd=" + std::to_string(device_.get()) + ",rootmode=100600,user_id=0,group_id=0";
    if (::mount("hostile", path.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
      return std::string("cannot mount: ") + std::strerror(errno);
    }
    return "";
  }
  void serve_until_opened() {
    alignas(fuse_in_header) std::array<std::byte, 65536> request{};
    while (::read(device_.get(), request.data(), request.size()) > 0) {
      fuse_in_header header{};
      std::memcpy(&header, request.data(), sizeof header);
      if (header.opcode == FUSE_INIT) {
        fuse_init_out out{};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = FUSE_KERNEL_MINOR_VERSION;
        out.max_write = kPage;
        answer(header, &out, sizeof out);
      } else if (header.opcode == FUSE_GETATTR) {
        fuse_attr_out out{};
        out.attr.ino = 1;
        out.attr.mode = S_IFREG | 0600;
        out.attr.nlink = 1;
        out.attr.size = 16 * kPage;
        answer(header, &out, sizeof out);
      } else if (header.opcode == FUSE_OPEN) {
        fuse_open_out out{};
        out.open_flags = FOPEN_NOFLUSH;
        answer(header, &out, sizeof out);
        return;
      }
    }
  }

 private:
  void answer(const fuse_in_header& to, const void* body, std::size_t bytes) {
    fuse_out_header header{};
    header.len = static_cast<std::uint32_t>(sizeof header + bytes);
    header.unique = to.unique;
    std::vector<std::byte> reply(header.len);
    std::memcpy(reply.data(), &header, sizeof header);
    std::memcpy(reply.data() + sizeof header, body, bytes);
    RW_CHECK(::write(device_.get(), reply.data(), reply.size()) == static_cast<ssize_t>(reply.size()));
  }

  UniqueFd device_;
};

// In a process of its own, because of the mount namespace. Exit code 0: refused as it should be; 77: can't be tried here.
void refuse_hostile_fuse(bool visible) {
  ::alarm(20);  // a Mapping that asks the file system would hang
  std::string path = ::testing::TempDir() + "ringway-fuse-XXXXXX";
  UniqueFd place(::mkostemp(path.data(), O_CLOEXEC));
  RW_CHECK(place);
  HostileFuse fuse;
  const std::string why_not = fuse.mount_at(path);
  if (!why_not.empty()) {
    ::unlink(path.c_str());
    std::fprintf(stderr, "%s\n", why_not.c_str());
    ::_exit(77);
  }
  std::thread server([&fuse] { fuse.serve_until_opened(); });
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  server.join();
  RW_CHECK(file);
  if (!visible) {
    RW_CHECK(::umount2(path.c_str(), MNT_DETACH) == 0);
    ::unlink(path.c_str());
  }
  const auto mapping = Mapping::create(file.get(), kGuest, kUser, kPage, 0);
  const auto identity = Mapping::identify(file.get(), kGuest, kUser, kPage, 0);
  if (visible) {
    RW_CHECK(::umount2(path.c_str(), MNT_DETACH) == 0);
    ::unlink(path.c_str());
  }
  RW_CHECK(!mapping.has_value() && !identity.has_value());
  std::fprintf(stderr, "%s\n", mapping.error().message.c_str());
  ::_exit(0);
}

class HostileFileSystemDeathTest : public ::testing::TestWithParam<bool> {};

TEST_P(HostileFileSystemDeathTest, IsRefusedWithoutAskingIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int code = -1;
  const auto ended = [&code](int status) {
    code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return code == 0 || code == 77;
  };
  EXPECT_EXIT(refuse_hostile_fuse(GetParam()), ended,
              GetParam() ? "of type fuse, which could stall us|cannot|no right" : "mounted here|cannot|no right");
  if (code == 77) {
    GTEST_SKIP() << "needs /dev/fuse and the right to mount";
  }
}

INSTANTIATE_TEST_SUITE_P(Mount, HostileFileSystemDeathTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Visible" : "OfAnotherNamespace"; });

TEST(Mapping, UnchangedRegionHasTheSameIdentity) {
  const UniqueFd file = memory_file(4 * kPage);
  auto mapping = Mapping::create(file.get(), kGuest, kUser, kPage, kPage);
  ASSERT_TRUE(mapping.has_value()) << error_of(mapping);
  const Mapping::Identity& made = (*mapping)->identity();

  // The front-end sends another descriptor of the same file with each table.
  const UniqueFd again(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(again);
  EXPECT_EQ(Mapping::identify(again.get(), kGuest, kUser, kPage, kPage).value(), made);

  EXPECT_NE(Mapping::identify(file.get(), GuestAddress{kGuest.value + kPage}, kUser, kPage, kPage).value(), made);
  EXPECT_NE(Mapping::identify(file.get(), kGuest, UserAddress{kUser.value + kPage}, kPage, kPage).value(), made);
  EXPECT_NE(Mapping::identify(file.get(), kGuest, kUser, 2 * kPage, kPage).value(), made);
  EXPECT_NE(Mapping::identify(file.get(), kGuest, kUser, kPage, 0).value(), made);
  const UniqueFd other = memory_file(4 * kPage);
  EXPECT_NE(Mapping::identify(other.get(), kGuest, kUser, kPage, kPage).value(), made);
  EXPECT_FALSE(Mapping::identify(-1, kGuest, kUser, kPage, kPage).has_value());
}

TEST(Mapping, AnonymousMemoryIsNeverTheSameRegion) {
  auto a = Mapping::create_anonymous(kGuest, kUser, 100);
  auto b = Mapping::create_anonymous(kGuest, kUser, 100);
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_NE((*a)->identity(), (*b)->identity());
  EXPECT_NE((*a)->data(), (*b)->data());
  EXPECT_EQ((*a)->bytes(), 100U);
}

TEST(Mapping, TenThousandLeaveNothingBehind) {
  const UniqueFd file = memory_file(4 * kPage);
  const auto once = [&file] {
    auto mapping = Mapping::create(file.get(), kGuest, kUser, 2 * kPage, kPage);
    ASSERT_TRUE(mapping.has_value()) << error_of(mapping);
    (*mapping)->data()[0] = std::byte{1};
    ASSERT_FALSE(Mapping::create(file.get(), kGuest, kUser, 5 * kPage, 0).has_value());
  };
  once();  // what the first call allocates for good
  const std::size_t descriptors = open_descriptors();
  const std::size_t maps = lines_of("/proc/self/maps");
  for (int i = 0; i < 10'000; ++i) {
    once();
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  // The allocator may map an arena or two meanwhile; a leak would be thousands.
  EXPECT_NEAR(static_cast<double>(lines_of("/proc/self/maps")), static_cast<double>(maps), 8);
}

// A huge page's size and the number of free ones, from /proc/meminfo.
struct HugePages {
  std::uint64_t bytes = 0;
  std::uint64_t free = 0;
};
HugePages huge_pages() {
  std::ifstream file("/proc/meminfo");
  HugePages found;
  for (std::string line; std::getline(file, line);) {
    unsigned long value = 0;
    if (std::sscanf(line.c_str(), "Hugepagesize: %lu kB", &value) == 1) {
      found.bytes = value * 1024;
    } else if (std::sscanf(line.c_str(), "HugePages_Free: %lu", &value) == 1) {
      found.free = value;
    }
  }
  return found;
}

TEST(Mapping, HugePagesAreMappedAroundTheRegionAndReplacedWhole) {
  const HugePages huge = huge_pages();
  if (huge.bytes == 0 || huge.free < 3) {
    GTEST_SKIP() << "needs 3 free huge pages of the default size (sysctl vm.nr_hugepages)";
  }
  const UniqueFd file(::memfd_create("huge-guest-memory", MFD_CLOEXEC | MFD_HUGETLB));
  ASSERT_TRUE(file) << std::strerror(errno);
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(3 * huge.bytes)), 0);
  // Starts and ends inside a huge page, as the region above QEMU's hole below 4 GiB may.
  const std::uint64_t offset = huge.bytes + kPage;
  auto mapping = Mapping::create(file.get(), kGuest, kUser, huge.bytes, offset);
  ASSERT_TRUE(mapping.has_value()) << error_of(mapping);
  (*mapping)->data()[0] = std::byte{1};
  (*mapping)->data()[huge.bytes - 1] = std::byte{2};
  {
    auto whole = Mapping::create(file.get(), kGuest, kUser, 3 * huge.bytes, 0);
    ASSERT_TRUE(whole.has_value()) << error_of(whole);
    EXPECT_EQ((*whole)->data()[offset], std::byte{1});
    EXPECT_EQ((*whole)->data()[offset + huge.bytes - 1], std::byte{2});
  }
  ASSERT_EQ(::ftruncate(file.get(), 0), 0);
  EXPECT_EQ((*mapping)->data()[huge.bytes - 1], std::byte{0});
  EXPECT_TRUE((*mapping)->poisoned());
}

TEST(Mapping, WhatIsNotTheGuestsIsNamedAsWhatItIs) {
  const UniqueFd file = memory_file(kPage);
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  for (const auto& [purpose, name] :
       {std::pair{Mapping::Purpose::dirty_log, "dirty log"}, {Mapping::Purpose::inflight_region, "in-flight region"}}) {
    const auto error = [wanted = purpose](int fd, std::uint64_t bytes, std::uint64_t offset) {
      return error_of(Mapping::create_for(wanted, fd, bytes, offset));
    };
    EXPECT_EQ(error(file.get(), 0, 0), std::string(name) + " of 0 bytes is empty");
    EXPECT_EQ(error(file.get(), 2 * kPage, 0),
              std::string(name) + " of 8192 bytes starts at offset 0 of a file that has only 4096 bytes");
    EXPECT_EQ(error(epoll.get(), kPage, 0),
              "the " + std::string(name) + " is not on a regular file; use shared memory, a memfd or hugetlbfs");
    EXPECT_THAT(error(-1, kPage, 0), HasSubstr("cannot look at the file of the " + std::string(name) + ", descriptor -1"));
    const auto mapping = Mapping::create_for(purpose, file.get(), kPage, 0);
    ASSERT_TRUE(mapping) << error_of(mapping);
    EXPECT_EQ((*mapping)->bytes(), kPage);
  }
}

// In a process of its own, which ends as soon as it has said it.
std::string warning_under_limit(std::uint64_t limit_mebibytes) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = limit_mebibytes << 20U;
    if (::setrlimit(RLIMIT_AS, &limit) != 0) {
      ::_exit(1);
    }
    const std::string warning = address_space_warning().value_or("nothing");
    ::_exit(::write(writing.get(), warning.data(), warning.size()) == static_cast<ssize_t>(warning.size()) ? 0 : 1);
  }
  writing.reset();
  char buffer[1024];
  const ssize_t got = ::read(reading.get(), buffer, sizeof buffer);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return got > 0 ? std::string(buffer, static_cast<std::size_t>(got)) : "";
}

TEST(Mapping, ALimitThatLeavesNoRoomForASmallGuestIsWarnedOf) {
  if (!test::NoThreads::kPossible) {
    GTEST_SKIP() << "sanitizers have more than that";
  }
  EXPECT_EQ(warning_under_limit(std::uint64_t{1} << 20U), "nothing");
  const std::string warning = warning_under_limit(600);
  EXPECT_THAT(warning, HasSubstr("the limit of address space (ulimit -v) is 600 MiB: "));
  EXPECT_THAT(warning, HasSubstr("less than a small one has (256 MiB)"));
}

// Sparse memory costs its owner nothing, so address space is divided: who has much of it leaves half of the rest to others.
TEST(Mapping, OneFrontEndGetsHalfOfWhatTheOthersLeave) {
  constexpr std::uint64_t kTebibyte = 1ULL << 40U;
  const UniqueFd file = memory_file(0);
  ASSERT_EQ(::ftruncate(file.get(), 40 * kTebibyte), 0);
  const auto greedy = ForeignHoldings::create();
  const auto other = ForeignHoldings::create();
  const auto map = [&](const std::shared_ptr<ForeignHoldings>& holdings, std::uint64_t bytes) {
    return Mapping::create(file.get(), kGuest, kUser, bytes, 0, holdings);
  };
  {
    const auto first = map(greedy, 24 * kTebibyte);
    if (!first) {
      GTEST_SKIP() << "no such address space here (a sanitizer, or ulimit -v): " << error_of(first);
    }
    EXPECT_EQ(greedy->mapped_bytes(), 24 * kTebibyte);
    EXPECT_THAT(error_of(map(greedy, 9 * kTebibyte)), HasSubstr("half of the"));
    EXPECT_THAT(error_of(map(other, 21 * kTebibyte)), HasSubstr("half of the"));
    EXPECT_TRUE(map(other, 16 * kTebibyte));
  }
  EXPECT_TRUE(soon([&] { return greedy->descriptors() + other->descriptors() == 0; }, std::chrono::seconds(10)));
  EXPECT_EQ(greedy->mapped_bytes() + other->mapped_bytes(), 0U);
}

// The pages of a deleted file go with the last reference to it, which must not be a mapping: munmap() would free them under
// the lock that every page fault needs.
TEST(Mapping, KeepsTheFileUntilAfterTheMapping) {
  const auto holdings = ForeignHoldings::create();
  std::binary_semaphore may_go{0};
  UniqueFd file = memory_file(kPage);
  auto mapping = Mapping::create(file.get(), kGuest, kUser, kPage, 0, holdings);
  ASSERT_TRUE(mapping) << error_of(mapping);
  EXPECT_EQ(holdings->descriptors(), 1U);
  EXPECT_EQ(holdings->mapped_bytes(), kPage);
  holdings->let_go(ForeignHoldings::Lane::bounded, [&] { may_go.acquire(); });
  mapping->reset();
  EXPECT_EQ(holdings->descriptors(), 1U);
  EXPECT_EQ(holdings->mapped_bytes(), kPage);
  may_go.release();
  EXPECT_TRUE(soon([&] { return holdings->descriptors() == 0; }, std::chrono::seconds(10)));
  EXPECT_EQ(holdings->mapped_bytes(), 0U);
}

}  // namespace
}  // namespace ringway
