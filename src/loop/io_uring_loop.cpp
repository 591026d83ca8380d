// How it works
//
// One ring per loop. SINGLE_ISSUER and DEFER_TASKRUN: completions that need work in our context are done only when we enter
// the kernel, never by interrupting us; so nothing shows up in the completion queue of a thread that only spins, and the
// kernel says by IORING_SQ_TASKRUN (TASKRUN_FLAG) when entering would bring something. poll() looks at that flag and at its
// own submission queue and makes no system call when both are empty; that is two loads against the 300 ns of an empty
// io_uring_enter.
//
// Watches are multishot polls without IORING_POLL_ADD_LEVEL, which are edges: each wake-up of the descriptor's wait queue
// gives a completion, and nothing need be read. The kernel ends a multishot poll for reasons of its own (no
// IORING_CQE_F_MORE), after which it is armed again; arming looks at the descriptor first, so no edge falls in the gap.
//
// Timers are a heap in user space and bound the timeout of the sleep. A timeout entry in the ring would cost a submission
// and a completion for each, and a cancellation for each that is moved, which is what most timers are.
//
// user_data: two bits of kind, then for a watch its WatchId, for an operation generation and slot. Slots are freed by their
// completion, so at most `slots_.size()` operation completions are outstanding; the completion queue is twice that. If it
// overflows all the same (watches in thousands), the kernel keeps the rest (IORING_FEAT_NODROP), sets
// IORING_SQ_CQ_OVERFLOW, and hands them over at the next enter.
//
// A poll in flight holds a reference to its file: a socket that is closed while we still poll it isn't closed for its peer.
// So unwatch() cancels and enters at once, rather than with the next turn.
#include "loop/io_uring_loop.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/limits.hpp"
#include "loop/clock.hpp"
#include "loop/io_uring_compat.hpp"
#include "loop/io_uring_refusal.hpp"

namespace ringway {

namespace {

enum class Kind : std::uint64_t { operation = 0, watch = 1, wake = 2, ignored = 3 };

constexpr unsigned kKindShift = 62;
constexpr std::uint64_t kPayloadMask = (std::uint64_t{1} << kKindShift) - 1;
constexpr unsigned kGenerationShift = 32;
constexpr std::uint32_t kGenerationMask = (1U << 30U) - 1;
constexpr std::uint32_t kNoSlot = UINT32_MAX;
constexpr std::uint32_t kOperationsMin = limits::kSlotsPerWorkerMax + 1024;  // one for each request that a worker may have
                                                                             // in flight, and for what stores do besides
constexpr std::uint32_t kEntriesMax = 32768;                                 // IORING_MAX_ENTRIES of the kernel

static_assert(WatchTable::kSlotBits + WatchTable::kGenerationBits == kKindShift);

constexpr std::uint64_t tagged(Kind kind, std::uint64_t payload) {
  return (static_cast<std::uint64_t>(kind) << kKindShift) | payload;
}

constexpr std::uint64_t operation_user_data(std::uint32_t slot, std::uint32_t generation) {
  return tagged(Kind::operation, (std::uint64_t{generation} << kGenerationShift) | slot);
}

// The words shared with the kernel. Ours are written with release so that it sees the entries before the index; the kernel's
// are read with acquire for the same reason (partners: smp_load_acquire and smp_store_release in io_uring).
std::uint32_t load_acquire(unsigned* word) noexcept {
  return std::atomic_ref<unsigned>(*word).load(std::memory_order_acquire);
}
std::uint32_t load_relaxed(unsigned* word) noexcept {
  return std::atomic_ref<unsigned>(*word).load(std::memory_order_relaxed);
}
void store_release(unsigned* word, std::uint32_t value) noexcept {
  std::atomic_ref<unsigned>(*word).store(value, std::memory_order_release);
}

constexpr std::uint32_t kReportedEvents = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP;

}  // namespace

// --- Creation ---

Result<std::unique_ptr<IoUringLoop>> IoUringLoop::create(const IoUringOptions& options) {
  if (options.entries == 0 || options.entries > kEntriesMax) {
    return fail(fmt::format("an io_uring can't have {} entries; 1 to {} are allowed", options.entries, kEntriesMax));
  }
  std::unique_ptr<IoUringLoop> loop(new IoUringLoop);
  loop->wake_event_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->wake_event_) {
    return fail_errno(errno, "can't create an eventfd for an event loop (is the limit of open files too low?)");
  }
  RW_TRY(loop->open_ring(options));
  RW_TRY(loop->check_features());
  loop->register_with_kernel(options.registered_files);
  // The first enter, while its failure can still be told: a seccomp filter may allow io_uring_setup alone.
  RW_CHECK(loop->arm_wake_event());
  if (const int result = loop->enter(0, IORING_ENTER_GETEVENTS, nullptr); result < 0) {
    return fail(explain_io_uring_refusal(gather_refusal_facts(-result, "io_uring_enter")));
  }
  loop->usable_ = true;
  return loop;
}

Result<> IoUringLoop::open_ring(const IoUringOptions& options) {
  const std::uint32_t operations =
      options.operations != 0 ? options.operations : std::max(kOperationsMin, 4 * options.entries);
  // From the best to what older kernels take: DEFER_TASKRUN came with 6.1, SINGLE_ISSUER with 6.0, the others with 5.19.
  const std::uint32_t oldest = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL;
  const std::uint32_t flag_sets[] = {
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
      oldest | IORING_SETUP_SINGLE_ISSUER,
      oldest,
  };
  int result = -EINVAL;
  for (const std::uint32_t flags : flag_sets) {
    if ((flags & IORING_SETUP_DEFER_TASKRUN) != 0 && !options.deferred_task_work) {
      continue;
    }
    io_uring_params params{};
    params.flags = flags | IORING_SETUP_CQSIZE;
    const std::uint32_t completions = options.completion_entries != 0 ? options.completion_entries : 2 * operations;
    // Not larger than the kernel's limit, not smaller than the submission queue.
    params.cq_entries = std::clamp(completions, options.entries, 2 * kEntriesMax);
    result = io_uring_queue_init_params(options.entries, &ring_, &params);
    if (result != -EINVAL) {
      break;
    }
  }
  if (result < 0) {
    return fail(explain_io_uring_refusal(gather_refusal_facts(-result, "io_uring_setup")));
  }
  open_ = true;
  // A child process that doesn't exec must not submit to our ring by accident.
  static_cast<void>(io_uring_ring_dontfork(&ring_));
  // Entries are used in order, so the indirection is the identity for ever.
  for (std::uint32_t i = 0; i < ring_.sq.ring_entries; ++i) {
    ring_.sq.array[i] = i;
  }
  allocate_tables(operations);
  return {};
}

void IoUringLoop::allocate_tables(std::uint32_t operations) {
  slots_.resize(operations);
  for (std::uint32_t i = 0; i < operations; ++i) {
    slots_[i].link = i + 1 < operations ? i + 1 : kNoSlot;
  }
  free_slot_ = 0;
}

Result<> IoUringLoop::check_features() {
  const std::uint32_t needed = IORING_FEAT_NODROP | IORING_FEAT_SUBMIT_STABLE | IORING_FEAT_EXT_ARG | IORING_FEAT_CQE_SKIP;
  const auto too_old = [](std::string_view what) {
    return fail(fmt::format("this kernel ({}) is too old for our use of io_uring: it lacks {}; 5.19 or newer is needed",
                            kernel_release(), what));
  };
  if ((ring_.features & needed) != needed) {
    return too_old(fmt::format("features {:#x}", needed & ~ring_.features));
  }
  const std::unique_ptr<io_uring_probe, void (*)(io_uring_probe*)> probe(io_uring_get_probe_ring(&ring_),
                                                                         io_uring_free_probe);
  if (probe == nullptr) {
    return fail(explain_io_uring_refusal(gather_refusal_facts(EPERM, "io_uring_register")));
  }
  const int operations[] = {IORING_OP_NOP,         IORING_OP_READ,        IORING_OP_WRITE,     IORING_OP_READV,
                            IORING_OP_WRITEV,      IORING_OP_FSYNC,       IORING_OP_FALLOCATE, IORING_OP_POLL_ADD,
                            IORING_OP_POLL_REMOVE, IORING_OP_ASYNC_CANCEL};
  for (const int operation : operations) {
    if (io_uring_opcode_supported(probe.get(), operation) == 0) {
      return too_old(fmt::format("operation {}", operation));
    }
  }
  vectored_fixed_ = io_uring_opcode_supported(probe.get(), uring::kOpReadvFixed) != 0 &&
                    io_uring_opcode_supported(probe.get(), uring::kOpWritevFixed) != 0;
  if ((ring_.features & uring::kFeatureNoIowait) != 0) {
    wait_flags_ |= uring::kEnterNoIowait;
  }
  return {};
}

void IoUringLoop::register_with_kernel(std::uint32_t files) {
  // Both only save time; without them the plain descriptors do.
  if (io_uring_register_ring_fd(&ring_) == 1) {
    enter_flags_ |= IORING_ENTER_REGISTERED_RING;
  }
  // The kernel refuses a table larger than RLIMIT_NOFILE.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    files = static_cast<std::uint32_t>(std::min<rlim_t>(files, limit.rlim_cur));
  }
  if (files != 0 && io_uring_register_files_sparse(&ring_, files) == 0) {
    free_files_.reserve(files);
    for (std::uint32_t i = files; i > 0; --i) {
      free_files_.push_back(static_cast<int>(i - 1));
    }
  }
}

IoUringLoop::~IoUringLoop() {
  // The kernel may touch the buffers of an operation until its completion, so a ring that still has some must live on.
  RW_CHECK(in_flight_ == 0);
  if (usable_) {
    // Closing the ring would end the polls too, but later, in a kernel thread, with the files held until then.
    if (io_uring_sqe* sqe = take_sqe(); sqe != nullptr) {
      io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
      sqe->user_data = tagged(Kind::ignored, 0);
      run_task_work();
    }
  }
  if (open_) {
    io_uring_queue_exit(&ring_);
  }
}

// --- The two queues ---

std::uint32_t IoUringLoop::pending_submissions() const noexcept {
  // Relaxed: the kernel takes entries only within our own calls.
  return ring_.sq.sqe_tail - load_relaxed(ring_.sq.khead);
}

std::uint32_t IoUringLoop::kernel_flags() const noexcept {
  // Relaxed: a hint to enter; a flag that is missed now is seen in the next turn.
  return load_relaxed(ring_.sq.kflags);
}

bool IoUringLoop::completion_ready() const noexcept {
  return load_acquire(ring_.cq.ktail) != *ring_.cq.khead;
}

bool IoUringLoop::has_work_for_kernel() const noexcept {
  return pending_submissions() != 0 || (kernel_flags() & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

io_uring_sqe* IoUringLoop::take_sqe() noexcept {
  if (RW_UNLIKELY(pending_submissions() == ring_.sq.ring_entries)) {
    static_cast<void>(enter(0, 0, nullptr));
    if (pending_submissions() == ring_.sq.ring_entries) {
      return nullptr;
    }
  }
  io_uring_sqe* sqe = &ring_.sq.sqes[ring_.sq.sqe_tail & ring_.sq.ring_mask];
  ++ring_.sq.sqe_tail;
  std::memset(sqe, 0, sizeof *sqe);
  return sqe;
}

// Returns what io_uring_enter returned. Entries that the kernel didn't take stay in the queue for the next call.
int IoUringLoop::enter(std::uint32_t completions_wanted, std::uint32_t flags,
                       const io_uring_getevents_arg* argument) noexcept {
  const std::uint32_t submissions = pending_submissions();
  store_release(ring_.sq.ktail, ring_.sq.sqe_tail);
  ring_.sq.sqe_head = ring_.sq.sqe_tail;
  if ((kernel_flags() & IORING_SQ_CQ_OVERFLOW) != 0) {
    overflows_.add();
  }
  system_calls_.add();
  // The argument is read only; liburing's signature has no const.
  void* raw_argument = const_cast<io_uring_getevents_arg*>(argument);
  const int result = io_uring_enter2(static_cast<unsigned>(ring_.enter_ring_fd), submissions, completions_wanted,
                                     flags | enter_flags_ | (argument != nullptr ? IORING_ENTER_EXT_ARG : 0U),
                                     static_cast<sigset_t*>(raw_argument), argument != nullptr ? sizeof *argument : 0);
  return result;
}

// Submits, and takes what the kernel has, without sleeping.
void IoUringLoop::enter_for_events() noexcept {
  const int result = enter(0, IORING_ENTER_GETEVENTS, nullptr);
  // EAGAIN, ENOMEM: no memory for a request now. EBUSY: completions must be taken first. EINTR: a signal. All pass, and the
  // entries are still in the queue. Anything else is a mistake of ours or a completion lost by the kernel (EBADR, no memory
  // to keep an overflow): then nobody knows any more which memory is still being written to.
  RW_CHECK(result >= 0 || result == -EAGAIN || result == -ENOMEM || result == -EBUSY || result == -EINTR);
}

// Enters until the work that is queued for us now has been done. The kernel does about 20 pieces per call.
void IoUringLoop::run_task_work() noexcept {
  std::size_t rounds = (in_flight_ + watches_.size()) / 16 + 4;
  do {
    enter_for_events();
  } while (--rounds != 0 && (pending_submissions() != 0 || (kernel_flags() & IORING_SQ_TASKRUN) != 0));
}

// --- Watches ---

Result<WatchId> IoUringLoop::watch(int fd, std::uint32_t events, FdHandler& handler) {
  RW_CHECK((events & ~static_cast<std::uint32_t>(EPOLLIN | EPOLLOUT)) == 0);
  // Errors of the poll itself would come later, as a completion; those that can be known are told now.
  struct stat status{};
  system_calls_.add();
  if (fstat(fd, &status) != 0) {
    return fail_errno(errno, fmt::format("can't watch file descriptor {}", fd));
  }
  if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) {
    return fail_errno(EPERM, fmt::format("can't watch file descriptor {}, which is a regular file or a directory", fd));
  }
  const WatchId id = watches_.add(fd, events, handler);
  if (!arm(id)) {
    unsubmitted_arms_.push_back(id);
  }
  return id;
}

void IoUringLoop::unwatch(WatchId watch) noexcept {
  const WatchTable::Watch* found = watches_.find(watch);
  if (found == nullptr) {
    return;
  }
  const bool armed = found->armed;
  watches_.remove(watch);
  if (!armed) {
    return;
  }
  if (!cancel_by_user_data(tagged(Kind::watch, watch.value))) {
    unsubmitted_disarms_.push_back(watch);
  }
  run_task_work();
}

// False: the submission queue is full and the kernel takes nothing.
bool IoUringLoop::arm(WatchId id) noexcept {
  io_uring_sqe* sqe = take_sqe();
  if (sqe == nullptr) {
    return false;
  }
  WatchTable::Watch* watch = watches_.find(id);
  RW_CHECK(watch != nullptr);
  io_uring_prep_poll_multishot(sqe, watch->fd, watch->events);
  sqe->user_data = tagged(Kind::watch, id.value);
  watch->armed = true;
  return true;
}

bool IoUringLoop::arm_wake_event() noexcept {
  io_uring_sqe* sqe = take_sqe();
  wake_unarmed_ = sqe == nullptr;
  if (sqe != nullptr) {
    io_uring_prep_poll_multishot(sqe, wake_event_.get(), EPOLLIN);
    sqe->user_data = tagged(Kind::wake, 0);
  }
  return sqe != nullptr;
}

bool IoUringLoop::cancel_by_user_data(std::uint64_t user_data) noexcept {
  io_uring_sqe* sqe = take_sqe();
  if (sqe == nullptr) {
    return false;
  }
  io_uring_prep_cancel64(sqe, user_data, 0);
  sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
  sqe->user_data = tagged(Kind::ignored, 0);
  return true;
}

void IoUringLoop::retry_unsubmitted() noexcept {
  if (wake_unarmed_ && !arm_wake_event()) {
    return;
  }
  while (!unsubmitted_disarms_.empty() && cancel_by_user_data(tagged(Kind::watch, unsubmitted_disarms_.back().value))) {
    unsubmitted_disarms_.pop_back();
  }
  while (!unsubmitted_arms_.empty()) {
    // It may have been unwatched meanwhile.
    if (watches_.find(unsubmitted_arms_.back()) != nullptr && !arm(unsubmitted_arms_.back())) {
      return;
    }
    unsubmitted_arms_.pop_back();
  }
}

// --- Timers ---

void IoUringLoop::set_timer(TimerHandler& timer, Instant when) {
  timers_.set(timer, when);
}

void IoUringLoop::cancel_timer(TimerHandler& timer) noexcept {
  timers_.cancel(timer);
}

// --- Turns ---

std::uint32_t IoUringLoop::poll(Instant now) noexcept {
  RW_DCHECK(!dispatching_);
  if (has_unsubmitted()) {
    retry_unsubmitted();
  }
  if (has_work_for_kernel()) {
    enter_for_events();
  }
  std::uint32_t handled = completion_ready() ? reap() : 0;
  if (timers_.next() <= now) {
    handled += timers_.fire(now);
  }
  return handled;
}

std::uint32_t IoUringLoop::wait(Instant now, Instant deadline, Instant* woke) noexcept {
  if (has_unsubmitted()) {
    retry_unsubmitted();
  }
  const Instant next_timer = timers_.next();
  const Instant until = std::min(deadline, next_timer);
  // What couldn't be submitted keeps us from sleeping: an unarmed descriptor wakes nobody.
  if (woken_ || until <= now || completion_ready() || has_unsubmitted()) {
    const std::uint32_t handled = poll(now);
    woken_ = false;
    return handled;
  }
  RW_DCHECK(!dispatching_);
  sleeps_.add();
  const bool endless = until == Instant::never();
  bool anything = false;
  bool refused = false;
  Instant after = now;
  do {
    const Duration timeout = until - after;
    const __kernel_timespec time{.tv_sec = timeout.ns / 1'000'000'000, .tv_nsec = timeout.ns % 1'000'000'000};
    io_uring_getevents_arg argument{};
    argument.ts = reinterpret_cast<std::uintptr_t>(&time);
    const int result = enter(1, IORING_ENTER_GETEVENTS | wait_flags_, endless ? nullptr : &argument);
    refused = result == -EAGAIN || result == -ENOMEM || result == -EBUSY;
    RW_CHECK(result >= 0 || result == -ETIME || result == -EINTR || refused);
    anything = completion_ready();
    if (!anything || woke != nullptr) {
      after = clock_now();
    }
    // A call that ends with nothing before its time was interrupted: by a signal, or by the kernel's own work on this thread
    // (another io_uring that it has closed). Nothing has come, so the sleep goes on; unless the kernel takes no entries now.
  } while (!anything && !refused && after < until);
  if (woke != nullptr) {
    *woke = after;
  }
  std::uint32_t handled = anything ? reap() : 0;
  woken_ = false;
  if (!anything && next_timer == until) {
    handled += timers_.fire(after);
  }
  return handled;
}

void IoUringLoop::wake() noexcept {
  // acq_rel: pairs with the exchange in complete_wake(); what the waker wrote before is seen by the owner after it has taken
  // the wake-up, also when this call finds one pending and writes nothing.
  if (wake_pending_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  const int saved_errno = errno;  // we may be in a signal handler
  const std::uint64_t one = 1;
  // EAGAIN (the counter is at its maximum) is the only possible failure, and needs 2^64 wake-ups.
  static_cast<void>(!::write(wake_event_.get(), &one, sizeof one));
  errno = saved_errno;
}

// --- Completions ---

// Handles what is in the completion queue now. What handlers cause to be added comes in the next turn. The queue's space is
// given back once, at the end.
std::uint32_t IoUringLoop::reap() noexcept {
  dispatching_ = true;
  std::uint32_t handled = 0;
  std::uint32_t head = *ring_.cq.khead;
  const std::uint32_t tail = load_acquire(ring_.cq.ktail);
  for (; head != tail; ++head) {
    const io_uring_cqe& cqe = ring_.cq.cqes[head & ring_.cq.ring_mask];
    handled += complete(cqe.user_data, cqe.res, cqe.flags);
  }
  store_release(ring_.cq.khead, tail);
  dispatching_ = false;
  return handled;
}

std::uint32_t IoUringLoop::complete(std::uint64_t user_data, std::int32_t result, std::uint32_t flags) noexcept {
  switch (static_cast<Kind>(user_data >> kKindShift)) {
    case Kind::operation:
      return complete_operation(user_data, result, flags) ? 1 : 0;
    case Kind::watch:
      return complete_watch(WatchId{user_data & kPayloadMask}, result, flags) ? 1 : 0;
    case Kind::wake:
      complete_wake(flags);
      return 0;
    case Kind::ignored:
      return 0;
  }
  return 0;
}

bool IoUringLoop::complete_operation(std::uint64_t user_data, std::int32_t result, std::uint32_t flags) noexcept {
  const auto index = static_cast<std::uint32_t>(user_data);
  RW_CHECK(index < slots_.size());
  Slot& slot = slots_[index];
  if (slot.operation == nullptr || operation_user_data(index, slot.generation) != user_data) {
    return false;
  }
  // Several completions for one entry would mean that a multishot operation was submitted here.
  RW_DCHECK((flags & IORING_CQE_F_MORE) == 0);
  static_cast<void>(flags);
  UringOperation& operation = *slot.operation;
  slot.operation = nullptr;
  slot.generation = (slot.generation + 1) & kGenerationMask;
  slot.link = free_slot_;
  free_slot_ = index;
  --in_flight_;
  operation.on_completion(result);
  return true;
}

bool IoUringLoop::complete_watch(WatchId id, std::int32_t result, std::uint32_t flags) noexcept {
  WatchTable::Watch* watch = watches_.find(id);
  if (watch == nullptr) {
    return false;  // unwatched; this is an event from before, or the end of the cancelled poll
  }
  const bool ended = (flags & IORING_CQE_F_MORE) == 0;
  watch->armed = !ended;
  bool arm_again = ended;
  if (result >= 0) {
    // A poll also reports EPOLLRDHUP unasked; it never comes without something else that we asked for, except when the peer
    // has shut down half of a connection: then a read finds the end.
    const std::uint32_t events = static_cast<std::uint32_t>(result) & kReportedEvents;
    watch->handler->on_ready(events != 0 ? events : static_cast<std::uint32_t>(EPOLLIN));
  } else if (result != -ECANCELED && result != -ENOMEM) {
    // The descriptor can't be polled (closed under us, or of a kind that has no poll). Told once, not tried for ever.
    arm_again = false;
    watch->handler->on_ready(EPOLLERR);
  }
  if (arm_again && watches_.find(id) != nullptr && !arm(id)) {
    unsubmitted_arms_.push_back(id);
  }
  return true;
}

void IoUringLoop::complete_wake(std::uint32_t flags) noexcept {
  // acq_rel: pairs with the exchange in wake().
  static_cast<void>(wake_pending_.exchange(false, std::memory_order_acq_rel));
  woken_ = true;
  if ((flags & IORING_CQE_F_MORE) == 0) {
    static_cast<void>(arm_wake_event());  // if it fails, retry_unsubmitted() does it
  }
}

// --- UringEngine ---

io_uring_sqe* IoUringLoop::prepare(UringOperation& operation) noexcept {
  if (RW_UNLIKELY(free_slot_ == kNoSlot)) {
    return nullptr;
  }
  io_uring_sqe* sqe = take_sqe();
  if (RW_UNLIKELY(sqe == nullptr)) {
    return nullptr;
  }
  const std::uint32_t index = free_slot_;
  Slot& slot = slots_[index];
  free_slot_ = slot.link;
  slot.operation = &operation;
  ++in_flight_;
  sqe->user_data = operation_user_data(index, slot.generation);
  return sqe;
}

void IoUringLoop::submit() noexcept {
  if (pending_submissions() != 0) {
    // What the kernel doesn't take now stays for the next poll() or wait().
    static_cast<void>(enter(0, 0, nullptr));
  }
}

Result<int> IoUringLoop::register_file(int fd) {
  if (free_files_.empty()) {
    return fail("no slot is left in the io_uring's table of registered files");
  }
  const int slot = free_files_.back();
  system_calls_.add();
  if (const int result = io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &fd, 1); result < 0) {
    return fail_errno(-result, fmt::format("can't register file descriptor {} with the io_uring", fd));
  }
  free_files_.pop_back();
  return slot;
}

void IoUringLoop::unregister_file(int slot) noexcept {
  int none = -1;
  system_calls_.add();
  const int result = io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &none, 1);
  RW_CHECK(result == 1);
  free_files_.push_back(slot);
}

Result<> IoUringLoop::open_buffer_table() {
  if (buffers_open_) {
    return {};
  }
  constexpr unsigned kBuffers = 16384;  // IORING_MAX_REG_BUFFERS of the kernel; 8 bytes each there
  system_calls_.add();
  if (const int result = io_uring_register_buffers_sparse(&ring_, kBuffers); result < 0) {
    return fail_errno(-result, "can't make a table of registered buffers for the io_uring (Linux 5.19 or newer is needed)");
  }
  buffers_open_ = true;
  free_buffers_.reserve(kBuffers);
  for (int i = kBuffers; i > 0; --i) {
    free_buffers_.push_back(i - 1);
  }
  return {};
}

Result<int> IoUringLoop::register_buffer(std::span<std::byte> memory) {
  RW_TRY(open_buffer_table());
  if (free_buffers_.empty()) {
    return fail("no slot is left in the io_uring's table of registered buffers");
  }
  const int slot = free_buffers_.back();
  const iovec vector{.iov_base = memory.data(), .iov_len = memory.size()};
  const __u64 no_tag = 0;
  system_calls_.add();
  const int result = io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(slot), &vector, &no_tag, 1);
  if (result < 0) {
    return fail_errno(-result, result == -ENOMEM
                                   ? "the kernel lets us lock no more memory (raise RLIMIT_MEMLOCK: ulimit -l, LimitMEMLOCK)"
                                   : "can't register memory with the io_uring");
  }
  free_buffers_.pop_back();
  return slot;
}

void IoUringLoop::unregister_buffer(int slot) noexcept {
  // An entry that the kernel finds after its buffer has gone fails with EFAULT. It refuses entries only while it has no
  // memory for requests, and then not for long; what it refuses to the end fails so.
  constexpr int kAttempts = 64;
  for (int i = 0; i < kAttempts && pending_submissions() != 0; ++i) {
    static_cast<void>(enter(0, 0, nullptr));
  }
  const iovec none{};
  const __u64 no_tag = 0;
  system_calls_.add();
  const int result = io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(slot), &none, &no_tag, 1);
  RW_CHECK(result == 1);
  free_buffers_.push_back(slot);
}

}  // namespace ringway
