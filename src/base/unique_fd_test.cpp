#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

namespace ringway {
namespace {

int open_one() {
  const int fd = ::eventfd(0, EFD_CLOEXEC);
  EXPECT_GE(fd, 0);
  return fd;
}

bool is_open_number(int fd) {
  return ::fcntl(fd, F_GETFD) != -1 || errno != EBADF;
}

TEST(UniqueFd, ClosesAtTheEndOfItsLife) {
  const int fd = open_one();
  {
    const UniqueFd owner(fd);
    EXPECT_TRUE(owner);
    EXPECT_EQ(owner.get(), fd);
    EXPECT_TRUE(is_open_number(fd));
  }
  EXPECT_FALSE(is_open_number(fd));
}

TEST(UniqueFd, EmptyOwnsNothing) {
  const UniqueFd empty;
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.get(), -1);
}

TEST(UniqueFd, DescriptorZeroIsADescriptor) {
  UniqueFd owner(0);
  EXPECT_TRUE(owner);
  EXPECT_EQ(owner.release(), 0);
}

TEST(UniqueFd, MoveTakesTheDescriptorAndClosesTheTargetsOwn) {
  const int first = open_one();
  const int second = open_one();
  UniqueFd a(first);
  UniqueFd b(second);
  b = std::move(a);
  EXPECT_EQ(b.get(), first);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_TRUE(is_open_number(first));
  EXPECT_FALSE(is_open_number(second));
  const UniqueFd c(std::move(b));
  EXPECT_EQ(c.get(), first);
  EXPECT_FALSE(b);  // NOLINT(bugprone-use-after-move)
}

TEST(UniqueFd, MoveToItselfKeepsIt) {
  UniqueFd owner(open_one());
  UniqueFd& alias = owner;
  owner = std::move(alias);
  EXPECT_TRUE(owner);
  EXPECT_TRUE(is_open_number(owner.get()));
}

TEST(UniqueFd, ReleaseLeavesItOpen) {
  UniqueFd owner(open_one());
  const int fd = owner.release();
  EXPECT_FALSE(owner);
  owner.reset();
  EXPECT_TRUE(is_open_number(fd));
  owner.reset(fd);
  owner.reset(fd);  // its own descriptor: stays open
  EXPECT_TRUE(is_open_number(fd));
  owner.reset();
  EXPECT_FALSE(is_open_number(fd));
}

}  // namespace
}  // namespace ringway
