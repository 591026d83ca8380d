// For files in memory: the worker itself calls, since nothing there can wait for a device.
//
// But it copies, and a guest may ask for gigabytes at once. So a call that moves or frees more than a slice waits in a list,
// and a timer that is always due carries out one slice of it in each turn of the loop; the worker's other queues have theirs
// in between. The rest of a transfer goes to the end of the list, behind the slices of others.
#include <algorithm>
#include <array>

#include "backend/blk/fifo.hpp"
#include "backend/blk/file_store.hpp"
#include "base/limits.hpp"

namespace ringway {
namespace {

class InlineChannel final : public FileChannel, private TimerHandler {
 public:
  InlineChannel(const Options& options, Loop& loop, BlkChannelCounters& counters)
      : FileChannel(options, counters), loop_(loop) {}
  InlineChannel(const InlineChannel&) = delete;
  InlineChannel& operator=(const InlineChannel&) = delete;
  ~InlineChannel() override { loop_.cancel_timer(*this); }

 private:
  static constexpr std::size_t kSliceSegments = 256;  // a slice in pages

  [[nodiscard]] std::int32_t start(FileOperation& operation) noexcept override {
    const FileCall& call = operation.call;
    // What has begun with a slice goes on with slices, or its end would come in the same turn.
    if (call.kind == FileCall::Kind::sync || (call.bytes <= limits::kCopySliceBytes && operation.done == 0)) {
      if (call.kind != FileCall::Kind::sync) {
        copied_ += call.bytes;
      }
      return perform(fd(), call);
    }
    sliced_.push(operation);
    loop_.set_timer(*this, Instant{});
    return kPending;
  }

  void on_timer(Instant /*now*/) noexcept override {
    FileOperation* const operation = sliced_.front();
    if (operation == nullptr) {
      return;
    }
    const bool freeing = operation->call.kind == FileCall::Kind::fallocate;
    const std::int32_t result = freeing ? free_slice(operation->call) : move_slice(operation->call);
    if (!freeing || result != kPending) {
      freed_ = 0;
      sliced_.pop();
      on_result(*operation, result);
    }
    if (!sliced_.empty()) {
      loop_.set_timer(*this, Instant{});
    }
  }

  // A transfer that ends early is what the kernel may answer as well: the channel goes on from there.
  [[nodiscard]] std::int32_t move_slice(FileCall& call) noexcept {
    std::uint64_t bytes = 0;
    std::uint32_t count = 0;
    while (count < call.segment_count && count < kSliceSegments && bytes < limits::kCopySliceBytes) {
      const iovec& whole = call.segments[count];
      slice_[count] = {whole.iov_base, std::min<std::uint64_t>(whole.iov_len, limits::kCopySliceBytes - bytes)};
      bytes += slice_[count].iov_len;
      ++count;
    }
    call.segments = slice_.data();
    call.segment_count = count;
    call.bytes = bytes;
    return perform(fd(), call);
  }

  // One by one of the same call, since a range counts as done with the first result. kPending: there is more.
  [[nodiscard]] std::int32_t free_slice(const FileCall& whole) noexcept {
    FileCall call = whole;
    call.offset += freed_;
    call.bytes = std::min(whole.bytes - freed_, limits::kCopySliceBytes);
    const std::int32_t result = perform(fd(), call);
    if (result < 0) {
      return result;
    }
    freed_ += call.bytes;
    return freed_ < whole.bytes ? kPending : result;
  }

  Loop& loop_;
  Fifo<FileOperation> sliced_;
  std::uint64_t freed_ = 0;  // of the first of them, if it is no transfer
  std::array<iovec, kSliceSegments> slice_;
};

}  // namespace

std::unique_ptr<BlkChannel> make_inline_channel(const FileChannel::Options& options, Loop& loop,
                                                BlkChannelCounters& counters) {
  return std::make_unique<InlineChannel>(options, loop, counters);
}

}  // namespace ringway
