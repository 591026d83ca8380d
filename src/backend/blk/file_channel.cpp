// Theory of operation.
//
// A request goes through: begin (take what it needs: an operation; a bounce buffer if its segments are not aligned for
// direct I/O; one of the few discard slots) → run: prepare a call, start it, advance by its result, until finished. A
// request that lacks something waits in the list of that resource and is begun by whoever gives one back.
//
// Segments are used as they stand in the request as long as a call can start at the beginning of one; after a short transfer
// that ended in the middle of one, a window of our own array describes the next part (the request's array is never changed).
// With direct I/O a result is rounded down to the alignment before it counts, so that each resumption is aligned again; no
// progress at all is the end of a file that was shortened.
#include "backend/blk/file_channel.hpp"

#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <type_traits>

#include "base/check.hpp"
#include "guest/access.hpp"
#include "guest/sigbus.hpp"
#include "ring/spec.hpp"

namespace ringway {
namespace {

constexpr std::uint32_t kRetriesMax = 1000;  // of one call, before EAGAIN counts as an error
constexpr std::size_t kZeroBytes = 64U << 10U;

static_assert(std::is_trivially_destructible_v<FileOperation>, "the slots are freed without ending what is in them");

// Never written: the kernel backs it by its one page of zeroes.
std::byte* zeroes() noexcept {
  static const PageMemory memory(kZeroBytes);
  return memory.data();
}

// The kernel found a segment unusable, but not which. Each lies within one mapping, and a file is truncated from its end: so
// if anything of a segment is gone, its last page is. The kernel touches that one for us; what it can't (before Linux 5.14
// nothing) is blamed. None is found where the file has grown again, or the kernel had no page to give: then this request has
// failed, and no more is known.
void blame_guest_memory(std::span<const iovec> segments) noexcept {
  constexpr std::uintptr_t kPage = 4096;
  for (const iovec& segment : segments) {
    const std::uintptr_t last = reinterpret_cast<std::uintptr_t>(segment.iov_base) + segment.iov_len - 1;
    auto* const page = reinterpret_cast<std::byte*>(last & ~(kPage - 1));  // NOLINT(performance-no-int-to-ptr)
#ifdef MADV_POPULATE_READ
    if (::madvise(page, kPage, MADV_POPULATE_READ) == 0) {
      continue;
    }
#endif
    sigbus::poison(page);
    return;  // one is enough to stop the guest's rings
  }
}

// `code` 0: nothing was moved, which is the end of the file.
BlkFailure failure_of(int code) noexcept {
  switch (code) {
    case 0:
      return BlkFailure::end_of_file;
    case ENOSPC:
    case EDQUOT:
      return BlkFailure::no_space;
    case EFAULT:
      return BlkFailure::guest_memory;
    default:
      return BlkFailure::io;
  }
}

bool unsupported(int code) {
  return code == EOPNOTSUPP || code == ENOSYS || code == EINVAL || code == ENODEV;
}

}  // namespace

std::int32_t perform(int fd, const FileCall& call) noexcept {
  const auto offset = static_cast<off_t>(call.offset);
  ssize_t result = 0;
  switch (call.kind) {
    case FileCall::Kind::read:
      result = ::preadv2(fd, call.segments, static_cast<int>(call.segment_count), offset, 0);
      break;
    case FileCall::Kind::write:
      result = ::pwritev2(fd, call.segments, static_cast<int>(call.segment_count), offset, call.durable ? RWF_DSYNC : 0);
      break;
    case FileCall::Kind::sync:
      result = ::fdatasync(fd);
      break;
    case FileCall::Kind::fallocate:
      result = ::fallocate(fd, call.mode, offset, static_cast<off_t>(call.bytes));
      break;
  }
  return result < 0 ? -errno : static_cast<std::int32_t>(result);
}

void FileOperation::on_completion(std::int32_t value) noexcept {
  channel->on_result(*this, value);
}

void FileOperation::run_task() noexcept {
  result = perform(channel->fd(), call);
  channel->on_task_done(*this);
}

PageMemory::PageMemory(std::size_t bytes) : bytes_(bytes) {
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RW_CHECK(address != MAP_FAILED);
  data_ = static_cast<std::byte*>(address);
}

PageMemory::~PageMemory() {
  ::munmap(data_, bytes_);
}

FileChannel::FileChannel(const Options& options, BlkChannelCounters& counters)
    : BlkChannel(counters),
      options_(options),
      prng_(options.faults.seed),
      slots_(std::make_unique_for_overwrite<Slot[]>(kOperations)),
      bounce_memory_(kBounceBuffers * kBounceBytes),
      punch_works_(options.can_punch) {
  for (std::size_t i = 0; i < kBounceBuffers; ++i) {
    free_bounces_[free_bounce_count_++] = bounce_memory_.data() + i * kBounceBytes;
  }
  sync_.channel = this;
  sync_.slow_task = true;
  sync_.call.kind = FileCall::Kind::sync;
}

FileChannel::~FileChannel() {
  RW_CHECK(in_flight_ == 0);
}

// --- resources ---

FileOperation* FileChannel::acquire_operation() noexcept {
  FileOperation* operation = free_.pop();
  if (operation == nullptr && slots_used_ < kOperations) {
    operation = new (slots_[slots_used_++].bytes) FileOperation;
    operation->channel = this;
  }
  return operation;
}

void FileChannel::release_operation(FileOperation& operation) noexcept {
  if (operation.bounce != nullptr) {
    free_bounces_[free_bounce_count_++] = operation.bounce;
    operation.bounce = nullptr;
  }
  if (operation.holds_discard_slot) {
    operation.holds_discard_slot = false;
    --discards_running_;
  }
  operation.request = nullptr;
  free_.push(operation);
}

std::byte* FileChannel::acquire_bounce() noexcept {
  return free_bounce_count_ == 0 ? nullptr : free_bounces_[--free_bounce_count_];
}

void FileChannel::serve_waiting() noexcept {
  // What is begun here may finish at once and come here again; the outer call goes on then.
  if (serving_) {
    return;
  }
  serving_ = true;
  while (free_bounce_count_ > 0 && !waiting_for_bounce_.empty()) {
    begin(*waiting_for_bounce_.pop());
  }
  while (discards_running_ < kDiscardsMax && !waiting_for_discard_.empty()) {
    begin(*waiting_for_discard_.pop());
  }
  while (!waiting_.empty()) {
    FileOperation* const operation = acquire_operation();
    if (operation == nullptr) {
      break;
    }
    operation->request = waiting_.pop();
    begin(*operation);
  }
  serving_ = false;
}

// --- the life of a request ---

void FileChannel::submit(BlkOperation& request) noexcept {
  ++in_flight_;
  if (request.request.opcode == BlkOpcode::flush) {
    // Nothing was ever written through a read-only file.
    return options_.read_only ? finish_request(request, spec::kBlkStatusOk) : join_sync(request);
  }
  if (request.request.opcode == BlkOpcode::get_id || request.request.opcode == BlkOpcode::secure_erase) {
    return finish_request(request, spec::kBlkStatusUnsupported);
  }
  if (options_.read_only && request.request.opcode != BlkOpcode::in) {
    counters_.add_failure(BlkFailure::io, EROFS);
    return finish_request(request, spec::kBlkStatusIoErr);
  }
  FileOperation* const operation = waiting_.empty() ? acquire_operation() : nullptr;
  if (operation == nullptr) {
    counters_.held_back.add();
    waiting_.push(request);
    return;
  }
  operation->request = &request;
  begin(*operation);
}

void FileChannel::begin(FileOperation& operation) noexcept {
  const BlkRequest& request = operation.request->request;
  operation.slow_task = false;
  operation.retries = 0;
  operation.blamed_before = blamed_;
  operation.range = 0;
  operation.segment = 0;
  operation.skip = 0;
  operation.done = 0;
  if (request.opcode == BlkOpcode::in || request.opcode == BlkOpcode::out) {
    if (options_.direct && !aligned(request)) {
      operation.bounce = acquire_bounce();
      if (operation.bounce == nullptr) {
        counters_.held_back.add();
        waiting_for_bounce_.push(operation);
        return;
      }
      counters_.bounced.add();
    }
  } else {
    if (discards_running_ >= kDiscardsMax) {
      counters_.held_back.add();
      waiting_for_discard_.push(operation);
      return;
    }
    ++discards_running_;
    operation.holds_discard_slot = true;
    operation.slow_task = true;
    operation.method = FileOperation::ZeroMethod::punch;
  }
  run(operation);
}

void FileChannel::run(FileOperation& operation) noexcept {
  const FileFaults& faults = options_.faults;
  Step step = Step::go_on;
  while (step == Step::go_on) {
    if (!prepare(operation)) {
      return finish(operation, spec::kBlkStatusOk);
    }
    std::int32_t result = -EAGAIN;
    if (faults.again_numerator == 0 || !prng_.chance(faults.again_numerator, faults.again_denominator)) {
      result = start(operation);
      if (result == kPending) {
        return;
      }
    }
    step = advance(operation, result);
  }
}

void FileChannel::on_result(FileOperation& operation, std::int32_t result) noexcept {
  if (advance(operation, result) == Step::go_on) {
    run(operation);
  }
}

bool FileChannel::prepare(FileOperation& operation) noexcept {
  if (&operation == &sync_) {
    return true;
  }
  const BlkOpcode opcode = operation.request->request.opcode;
  if (opcode == BlkOpcode::in || opcode == BlkOpcode::out) {
    prepare_data(operation);
    return true;
  }
  return prepare_range(operation);
}

FileChannel::Step FileChannel::advance(FileOperation& operation, std::int32_t result) noexcept {
  const bool retry = result == -EAGAIN || result == -EINTR;
  if (retry && operation.retries < kRetriesMax) {
    ++operation.retries;
    counters_.retries.add();
    return Step::go_on;
  }
  operation.retries = 0;
  if (&operation == &sync_) {
    return advance_sync(result);
  }
  if (operation.call.kind == FileCall::Kind::fallocate) {
    return advance_ranges(operation, result);
  }
  if (result < 0) {
    return give_up(operation, -result);
  }
  const auto bytes = static_cast<std::uint64_t>(result);
  const std::uint64_t useful = options_.direct ? bytes & ~std::uint64_t{options_.offset_alignment - 1} : bytes;
  if (useful == 0) {
    return give_up(operation, 0);
  }
  RW_DCHECK(useful <= operation.call.bytes);
  if (useful < operation.call.bytes) {
    counters_.short_transfers.add();
  }
  return advance_data(operation, useful);
}

FileChannel::Step FileChannel::advance_data(FileOperation& operation, std::uint64_t bytes) noexcept {
  const BlkRequest& request = operation.request->request;
  if (operation.holds_discard_slot) {
    // Zeroes by writing: nothing to walk along.
    operation.done += bytes;
    if (operation.done == request.ranges[operation.range].bytes) {
      operation.done = 0;
      ++operation.range;
      operation.method = FileOperation::ZeroMethod::punch;
    }
    return Step::go_on;
  }
  if (operation.bounce != nullptr && request.opcode == BlkOpcode::in) {
    copy_bounce(operation, bytes, true);
  }
  operation.done += bytes;
  if (operation.done == request.bytes) {
    finish(operation, spec::kBlkStatusOk);
    return Step::finished;
  }
  operation.skip += bytes;
  while (operation.skip >= request.data[operation.segment].iov_len) {
    operation.skip -= request.data[operation.segment].iov_len;
    ++operation.segment;
  }
  return Step::go_on;
}

FileChannel::Step FileChannel::advance_ranges(FileOperation& operation, std::int32_t result) noexcept {
  const bool discard = operation.request->request.opcode == BlkOpcode::discard;
  if (result < 0 && !unsupported(-result)) {
    return give_up(operation, -result);
  }
  if (result < 0) {
    counters_.fallbacks.add();
    const bool never = result == -EOPNOTSUPP || result == -ENOSYS;
    if (operation.method == FileOperation::ZeroMethod::punch) {
      punch_works_ = punch_works_ && !never;
      operation.method = FileOperation::ZeroMethod::zero_range;
    } else {
      zero_range_works_ = zero_range_works_ && !never;
      operation.method = FileOperation::ZeroMethod::write;
    }
  }
  // A discard is a hint: where it can't be followed, the data stays, and that is success.
  if (result >= 0 || discard) {
    ++operation.range;
    operation.method = FileOperation::ZeroMethod::punch;
  }
  return Step::go_on;
}

FileChannel::Step FileChannel::advance_sync(std::int32_t result) noexcept {
  // What has no way to be synchronised has nothing to lose either.
  const bool good = result >= 0 || unsupported(-result);
  if (!good) {
    counters_.add_failure(failure_of(-result), -result);
  }
  Fifo<BlkOperation> covered = sync_current_;
  sync_current_ = sync_next_;
  sync_next_ = {};
  // Stays true while there is a next one: a FLUSH that comes from within on_complete() must not start one of its own.
  sync_running_ = !sync_current_.empty();
  const bool again = sync_running_;
  if (again) {
    counters_.syncs.add();
  }
  while (BlkOperation* const request = covered.pop()) {
    finish_request(*request, good ? spec::kBlkStatusOk : spec::kBlkStatusIoErr);
  }
  return again ? Step::go_on : Step::finished;
}

FileChannel::Step FileChannel::give_up(FileOperation& operation, int code) noexcept {
  counters_.add_failure(failure_of(code), code);
  // One look for all that were on their way: they fail for the same reason, and may be many at once.
  if (code == EFAULT && operation.bounce == nullptr && !operation.holds_discard_slot && operation.blamed_before == blamed_) {
    ++blamed_;
    blame_guest_memory({operation.call.segments, operation.call.segment_count});
  }
  finish(operation, spec::kBlkStatusIoErr);
  return Step::finished;
}

void FileChannel::finish(FileOperation& operation, std::uint8_t status) noexcept {
  BlkOperation& request = *operation.request;
  const bool sync_it = operation.holds_discard_slot && request.request.durable && status == spec::kBlkStatusOk;
  release_operation(operation);
  if (sync_it) {
    join_sync(request);
  } else {
    finish_request(request, status);
  }
  serve_waiting();
}

void FileChannel::finish_request(BlkOperation& request, std::uint8_t status) noexcept {
  --in_flight_;
  complete(request, status);
}

void FileChannel::join_sync(BlkOperation& request) noexcept {
  if (sync_running_) {
    sync_next_.push(request);
    return;
  }
  sync_running_ = true;
  counters_.syncs.add();
  sync_current_.push(request);
  run(sync_);
}

// --- from a request to calls ---

bool FileChannel::aligned(const BlkRequest& request) const noexcept {
  // One pass, no branch per segment.
  std::uint64_t addresses = 0, lengths = 0;
  for (const iovec& segment : request.data) {
    addresses |= reinterpret_cast<std::uintptr_t>(segment.iov_base);
    lengths |= segment.iov_len;
  }
  return (addresses & (options_.memory_alignment - 1)) == 0 && (lengths & (options_.offset_alignment - 1)) == 0;
}

void FileChannel::prepare_data(FileOperation& operation) noexcept {
  const BlkRequest& request = operation.request->request;
  FileCall& call = operation.call;
  call.kind = request.opcode == BlkOpcode::in ? FileCall::Kind::read : FileCall::Kind::write;
  call.durable = request.durable;
  call.offset = request.offset + operation.done;
  if (operation.bounce != nullptr) {
    call.bytes = std::min<std::uint64_t>(request.bytes - operation.done, kBounceBytes);
    if (request.opcode == BlkOpcode::out) {
      copy_bounce(operation, call.bytes, false);
    }
    operation.window[0] = {operation.bounce, call.bytes};
    call.segments = operation.window.data();
    call.segment_count = 1;
  } else if (operation.skip == 0) {
    call.segments = request.data.data() + operation.segment;
    call.segment_count = static_cast<std::uint32_t>(std::min<std::size_t>(request.data.size() - operation.segment, IOV_MAX));
    call.bytes = request.bytes - operation.done;
    if (RW_UNLIKELY(call.segment_count + operation.segment < request.data.size())) {
      call.bytes = 0;
      for (std::uint32_t i = 0; i < call.segment_count; ++i) {
        call.bytes += call.segments[i].iov_len;
      }
    }
  } else {
    fill_window(operation, UINT64_MAX);
  }
  if (RW_UNLIKELY(options_.faults.short_numerator != 0)) {
    shorten(operation);
  }
}

void FileChannel::fill_window(FileOperation& operation, std::uint64_t limit) noexcept {
  const std::span<const iovec> data = operation.request->request.data;
  FileCall& call = operation.call;
  call.segments = operation.window.data();
  call.segment_count = 0;
  call.bytes = 0;
  std::uint64_t skip = operation.skip;
  for (std::size_t i = operation.segment;
       i < data.size() && call.segment_count < FileOperation::kWindowSegments && call.bytes < limit; ++i) {
    iovec& piece = operation.window[call.segment_count++];
    piece.iov_base = static_cast<std::byte*>(data[i].iov_base) + skip;
    piece.iov_len = std::min(data[i].iov_len - skip, limit - call.bytes);
    call.bytes += piece.iov_len;
    skip = 0;
  }
}

void FileChannel::shorten(FileOperation& operation) noexcept {
  const FileFaults& faults = options_.faults;
  const std::uint64_t unit = options_.direct ? options_.offset_alignment : 1;
  if (operation.call.bytes <= unit || !prng_.chance(faults.short_numerator, faults.short_denominator)) {
    return;
  }
  const std::uint64_t limit = unit * (1 + prng_.below(operation.call.bytes / unit - 1));
  if (operation.bounce != nullptr) {
    operation.window[0].iov_len = operation.call.bytes = limit;
  } else {
    fill_window(operation, limit);
  }
  counters_.short_transfers.add();
}

void FileChannel::copy_bounce(const FileOperation& operation, std::uint64_t bytes, bool to_guest) const noexcept {
  const std::span<const iovec> data = operation.request->request.data;
  std::byte* bounce = operation.bounce;
  std::uint64_t skip = operation.skip;
  for (std::size_t i = operation.segment; bytes > 0; ++i) {
    auto* const guest_bytes = static_cast<std::byte*>(data[i].iov_base) + skip;
    const std::uint64_t piece = std::min<std::uint64_t>(data[i].iov_len - skip, bytes);
    if (to_guest) {
      guest::copy(guest_bytes, bounce, piece);
    } else {
      guest::copy(bounce, guest_bytes, piece);
    }
    bounce += piece;
    bytes -= piece;
    skip = 0;
  }
}

// The next call for the ranges, or false when all are done.
bool FileChannel::prepare_range(FileOperation& operation) noexcept {
  using Method = FileOperation::ZeroMethod;
  const BlkRequest& request = operation.request->request;
  const bool discard = request.opcode == BlkOpcode::discard;
  while (operation.range < request.range_count &&
         (request.ranges[operation.range].bytes == 0 || (discard && !punch_works_))) {
    ++operation.range;
  }
  if (operation.range == request.range_count) {
    return false;
  }
  const BlkRequestRange& range = request.ranges[operation.range];
  if (!discard && operation.method == Method::punch && (!range.unmap || !punch_works_)) {
    operation.method = Method::zero_range;
  }
  if (operation.method == Method::zero_range && !zero_range_works_) {
    operation.method = Method::write;
  }
  FileCall& call = operation.call;
  call.offset = range.offset + operation.done;
  if (operation.method != Method::write) {
    call.kind = FileCall::Kind::fallocate;
    call.mode = FALLOC_FL_KEEP_SIZE | (operation.method == Method::punch ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE);
    call.bytes = range.bytes;
    return true;
  }
  call.kind = FileCall::Kind::write;
  call.durable = false;  // one fsync at the end
  call.segments = operation.window.data();
  call.segment_count = 0;
  call.bytes = 0;
  while (call.segment_count < FileOperation::kWindowSegments && call.bytes < range.bytes - operation.done) {
    iovec& piece = operation.window[call.segment_count++];
    piece = {zeroes(), std::min<std::size_t>(kZeroBytes, range.bytes - operation.done - call.bytes)};
    call.bytes += piece.iov_len;
  }
  return true;
}

}  // namespace ringway
