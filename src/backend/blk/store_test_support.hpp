// What the tests of stores share: backing files on several file systems, and requests without a ring.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/blk/blk_store.hpp"
#include "backend/blk/make_store.hpp"
#include "base/unique_fd.hpp"
#include "loop/clock.hpp"
#include "loop/make_loop.hpp"
#include "ring/spec.hpp"

namespace ringway::test {

// A directory of this test alone; gone with the object.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& parent) : path_(parent + "/ringway-store-XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr) << path_;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    for (const std::string& file : files_) {
      ::unlink(file.c_str());
    }
    ::rmdir(path_.c_str());
  }
  std::string make_file(const std::string& name, std::uint64_t bytes) {
    files_.push_back(path_ + "/" + name);
    const UniqueFd fd(::open(files_.back().c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    EXPECT_TRUE(fd);
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    return files_.back();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

// A loop device with sectors of 4096 bytes; empty path where this machine gives none.
class LoopDevice {
 public:
  explicit LoopDevice(const std::string& file) {
    const std::string command = "losetup -f --show -b 4096 " + file + " 2>/dev/null";
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
    std::array<char, 64> line{};
    if (pipe != nullptr && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
      path_ = line.data();
      path_.erase(path_.find_last_not_of('\n') + 1);
    }
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;
  ~LoopDevice() {
    if (!path_.empty()) {
      EXPECT_EQ(std::system(("losetup -d " + path_).c_str()), 0);
    }
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Page-aligned memory that stands for a guest's.
class GuestBuffer {
 public:
  explicit GuestBuffer(std::size_t bytes, std::size_t shift = 0)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + shift + 4095) / 4096 * 4096)), std::free),
        data_(memory_.get() + shift),
        bytes_(bytes) {
    std::memset(memory_.get(), 0xee, bytes + shift);
  }
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  void fill(std::uint64_t word) {
    for (std::size_t at = 0; at < bytes_; at += sizeof word) {
      std::memcpy(data_ + at, &word, sizeof word);
    }
  }
  std::uint64_t word(std::size_t at) const {
    std::uint64_t value = 0;
    std::memcpy(&value, data_ + at, sizeof value);
    return value;
  }
  bool all_words_are(std::uint64_t expected) const {
    for (std::size_t at = 0; at < bytes_; at += sizeof expected) {
      if (word(at) != expected) {
        return false;
      }
    }
    return true;
  }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  std::byte* data_;
  std::size_t bytes_;
};

// One request, which knows when it is done.
class TestRequest : public BlkCompletions {
 public:
  TestRequest() { operation_.completions = this; }
  TestRequest(const TestRequest&) = delete;
  TestRequest& operator=(const TestRequest&) = delete;
  virtual ~TestRequest() = default;

  TestRequest& data(BlkOpcode opcode, std::uint64_t offset, const GuestBuffer& buffer) {
    return data(opcode, offset, std::vector<iovec>{{buffer.data(), buffer.size()}});
  }
  TestRequest& data(BlkOpcode opcode, std::uint64_t offset, std::vector<iovec> segments) {
    segments_ = std::move(segments);
    original_ = segments_;
    operation_.request.opcode = opcode;
    operation_.request.offset = offset;
    operation_.request.data = segments_;
    operation_.request.bytes = 0;
    for (const iovec& segment : segments_) {
      operation_.request.bytes += segment.iov_len;
    }
    return *this;
  }
  TestRequest& flush() {
    operation_.request.opcode = BlkOpcode::flush;
    return *this;
  }
  TestRequest& ranges(BlkOpcode opcode, const std::vector<BlkRequestRange>& ranges) {
    operation_.request.opcode = opcode;
    operation_.request.range_count = static_cast<std::uint16_t>(ranges.size());
    std::copy(ranges.begin(), ranges.end(), operation_.request.ranges.begin());
    return *this;
  }
  TestRequest& durable() {
    operation_.request.durable = true;
    return *this;
  }

  void submit(BlkChannel& channel) {
    EXPECT_FALSE(pending_);
    pending_ = true;
    channel.submit(operation_);
  }
  void on_complete(BlkOperation& operation) noexcept override {
    EXPECT_EQ(&operation, &operation_);
    EXPECT_TRUE(pending_) << "completed twice";
    pending_ = false;
    ++completions_;
    // The request's own segments are as they were, whatever was resumed.
    EXPECT_TRUE(segments_.empty() || std::memcmp(segments_.data(), original_.data(), segments_.size() * sizeof(iovec)) == 0);
  }
  bool pending() const { return pending_; }
  unsigned completions() const { return completions_; }
  std::uint8_t status() const { return operation_.status; }
  BlkOperation& operation() { return operation_; }

 private:
  BlkOperation operation_;
  std::vector<iovec> segments_, original_;
  bool pending_ = false;
  unsigned completions_ = 0;
};

// Runs the loop until `done` or for ten seconds.
template <typename Done>
void run_until(Loop& loop, Done done) {
  Instant now = clock_now();
  const Instant give_up = now + Duration::seconds(10);
  while (!done() && now < give_up) {
    loop.wait(now, now + Duration::milliseconds(100));
    now = clock_now();
  }
  ASSERT_TRUE(done()) << "not done within ten seconds";
}

inline std::uint8_t execute(Loop& loop, BlkChannel& channel, TestRequest& request) {
  request.submit(channel);
  channel.end_of_batch();
  run_until(loop, [&] { return !request.pending(); });
  return request.status();
}

}  // namespace ringway::test
