#include "base/foreign.hpp"

#include <fcntl.h>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <climits>
#include <csignal>

#include "base/limits.hpp"

namespace ringway {

// All that there are: what each may have depends on what the others have.
struct ForeignHoldingsRegistry {
  std::mutex mutex;
  std::vector<ForeignHoldings*> all;

  // Never destroyed: threads that let go may outlive main().
  static ForeignHoldingsRegistry& get() {
    static auto* const registry = new ForeignHoldingsRegistry;
    return *registry;
  }

  // Under the mutex.
  [[nodiscard]] ForeignHoldings::DescriptorBudget budget() const noexcept;
  [[nodiscard]] std::uint32_t max_of(const ForeignHoldings& one) const noexcept;
};

namespace {

// What front-ends may have of the process's table: all but what we open ourselves, or half of a table so small that there
// would be little left.
std::uint64_t descriptors_for_front_ends() {
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  const rlim_t soft = std::min<rlim_t>(known ? limit.rlim_cur : 1024, 1U << 30U);
  return soft > 2 * limits::kOwnFds ? soft - limits::kOwnFds : soft / 2;
}

// Kick, call and error of each ring; the files of a memory table and of the one that replaces it; connection, listener,
// channel, log, in-flight region, and those of a message.
constexpr std::uint32_t kUsualRegions = 32;
constexpr std::uint32_t own_descriptors(std::uint32_t rings) {
  return 3 * rings + 2 * kUsualRegions + 16;
}
// They are counted when they are there: a front-end may get so many (SCM_MAX_FD) beyond its bound before it is stopped. Room
// for a number of others that do so at the same time.
constexpr std::uint64_t kTooManyAtOnce = 253;
constexpr std::uint64_t kDoSoAtOnce = 16;

cpu_set_t allowed_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  static_cast<void>(::sched_getaffinity(0, sizeof cpus, &cpus));
  return cpus;
}

constexpr int kNiceness = 10;  // whoever serves goes first
constexpr std::chrono::seconds kLingers{1};
// close() and munmap() need little. The default of 8 MiB, twice for each device, would take what ulimit -v leaves us.
constexpr std::size_t kStackBytes = std::size_t{256} << 10U;

// CPU time includes what interrupts (softirq) and the hypervisor took in the middle of a call, which is long then whoever is
// at the other end: now and then, or very long once, but hardly so often as not. So one call counts for no more than a
// bound, and long ones count if half of all are long: for a twentieth of a thread, and once in a while so much at once.
constexpr int kManyOfLast16 = 8;
constexpr Duration kOneOfMany = Duration::milliseconds(10);
constexpr Duration kManyAtOnce = Duration::milliseconds(50);
constexpr std::int64_t kShareOfMany = 20;
// A front-end can have ordinary calls between long ones, on another ring. An innocent one's, which are long for as much of
// the time as others steal and are themselves a small part of all that a thread does, come nowhere near this.
constexpr Duration kOneAmongOthers = Duration::milliseconds(250);
constexpr Duration kAmongOthersAtOnce = Duration::milliseconds(500);
constexpr std::int64_t kShareAmongOthers = 4;

// Memory files alone have seals. Their close() frees memory and waits for nobody.
bool is_memory(int fd) {
  return ::fcntl(fd, F_GET_SEALS) >= 0;
}

}  // namespace

ForeignHoldings::ForeignHoldings(Private /*by create() only*/, std::uint32_t rings)
    : cpus_(allowed_cpus()), own_descriptors_(own_descriptors(rings)) {
  ForeignHoldingsRegistry& registry = ForeignHoldingsRegistry::get();
  const std::lock_guard lock(registry.mutex);
  registry.all.push_back(this);
}

ForeignHoldings::~ForeignHoldings() {
  ForeignHoldingsRegistry& registry = ForeignHoldingsRegistry::get();
  const std::lock_guard lock(registry.mutex);
  std::erase(registry.all, this);
}

// ---------------------------------------------------------------- bounds

ForeignHoldings::DescriptorBudget ForeignHoldingsRegistry::budget() const noexcept {
  const std::uint64_t others = all.empty() ? 0 : all.size() - 1;
  ForeignHoldings::DescriptorBudget sum{.wanted = kTooManyAtOnce * std::min(others, kDoSoAtOnce),
                                        .possible = descriptors_for_front_ends()};
  for (const ForeignHoldings* each : all) {
    sum.wanted += each->own_descriptors_;
  }
  return sum;
}

std::uint32_t ForeignHoldingsRegistry::max_of(const ForeignHoldings& one) const noexcept {
  const auto [wanted, possible] = budget();
  std::uint64_t all_own = 0;
  for (const ForeignHoldings* each : all) {
    all_own += each->own_descriptors_;
  }
  // Where there is too little for all, each has less in proportion.
  const auto own = [&](const ForeignHoldings& each) -> std::uint64_t {
    return all_own <= possible ? each.own_descriptors_ : each.own_descriptors_ * possible / all_own;
  };
  std::uint64_t taken = 0;
  for (const ForeignHoldings* each : all) {
    const std::uint64_t has = each->descriptors();
    taken += each == &one ? 0 : has - std::min(has, own(*each));
  }
  const std::uint64_t free = possible - std::min(possible, wanted);
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(limits::kForeignFdsMax, own(one) + (free - std::min(free, taken)) / 2));
}

ForeignHoldings::DescriptorBudget ForeignHoldings::descriptor_budget() noexcept {
  ForeignHoldingsRegistry& registry = ForeignHoldingsRegistry::get();
  const std::lock_guard lock(registry.mutex);
  return registry.budget();
}

std::uint32_t ForeignHoldings::descriptors_max() const noexcept {
  ForeignHoldingsRegistry& registry = ForeignHoldingsRegistry::get();
  const std::lock_guard lock(registry.mutex);
  return registry.max_of(*this);
}

void ForeignHoldings::count_descriptor() noexcept {
  descriptors_.fetch_add(1, std::memory_order_relaxed);
}

void ForeignHoldings::discount_descriptor() noexcept {
  descriptors_.fetch_sub(1, std::memory_order_relaxed);
}

bool ForeignHoldings::take_harm() noexcept {
  const bool harmed = harmed_.exchange(false, std::memory_order_relaxed);
  if (harmed) {
    // It is paid for by a pause.
    const std::lock_guard lock(calls_mutex_);
    long_calls_ = 0;
    one_after_another_ = {};
    among_others_ = {};
  }
  return harmed;
}

void ForeignHoldings::Account::add(Duration cpu, std::int64_t slower, Instant now) noexcept {
  excused_at = std::max(excused_at, now) + Duration::nanoseconds(time_detail::multiply(cpu.ns, slower));
}

bool ForeignHoldings::Account::exceeds(Duration cpu, std::int64_t slower, Instant now) const noexcept {
  return (excused_at - now).ns > time_detail::multiply(cpu.ns, slower);
}

bool ForeignHoldings::charge(Duration cpu, Instant now) noexcept {
  // No worker waits here for the control thread.
  const std::unique_lock lock(calls_mutex_, std::try_to_lock);
  if (!lock) {
    return false;
  }
  const bool is_long = cpu > kOrdinaryCall;
  long_calls_ = static_cast<std::uint16_t>(long_calls_ * 2U + (is_long ? 1U : 0U));
  if (long_calls_ == 0) {
    one_after_another_ = {};
  }
  if (!is_long) {
    return false;
  }
  one_after_another_.add(std::min(cpu, kOneOfMany), kShareOfMany, now);
  among_others_.add(std::min(cpu, kOneAmongOthers), kShareAmongOthers, now);
  const bool harmful =
      (std::popcount(long_calls_) >= kManyOfLast16 && one_after_another_.exceeds(kManyAtOnce, kShareOfMany, now)) ||
      among_others_.exceeds(kAmongOthersAtOnce, kShareAmongOthers, now);
  if (harmful) {
    note_harm();
  }
  return harmful;
}

// ---------------------------------------------------------------- letting go

void ForeignHoldings::let_go(Lane lane, std::move_only_function<void()> end) noexcept {
  // What `end` owns may be the last that refers to us.
  const std::shared_ptr<ForeignHoldings> self = shared_from_this();
  Work& work = work_[static_cast<std::size_t>(lane)];
  {
    const std::lock_guard lock(mutex_);
    work.ends.push_back(std::move(end));
    if (std::exchange(work.served, true)) {
      work.came.notify_one();
      return;
    }
  }
  serve(work);
}

// Starts the thread for what is marked as served.
void ForeignHoldings::serve(Work& work) noexcept {
  // Nobody waits for the thread: who does, waits for the front-end. It owns what it touches.
  struct Task {
    std::shared_ptr<ForeignHoldings> holdings;
    Work& work;
  };
  const auto body = [](void* argument) -> void* {
    const std::unique_ptr<Task> task(static_cast<Task*>(argument));
    pthread_setname_np(pthread_self(), "rw-letting-go");
    static_cast<void>(::pthread_setaffinity_np(pthread_self(), sizeof task->holdings->cpus_, &task->holdings->cpus_));
    static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness));
    task->holdings->run(task->work);
    return nullptr;
  };
  auto task = std::make_unique<Task>(shared_from_this(), work);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, std::max(kStackBytes, static_cast<std::size_t>(PTHREAD_STACK_MIN)));
  // Signals are for the threads that expect them. What is blocked here is inherited.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const int code = pthread_create(&thread, &attributes, body, task.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (code == 0) {
    [[maybe_unused]] const Task* const passed_on = task.release();
    return;
  }
  // No thread to be had. Here nobody may wait: what there is waits until there is one, and counts meanwhile.
  const std::lock_guard lock(mutex_);
  work.served = false;
}

bool ForeignHoldings::serve_what_waits() noexcept {
  bool left = false;
  for (Work& work : work_) {
    {
      const std::lock_guard lock(mutex_);
      if (work.ends.empty() || std::exchange(work.served, true)) {
        continue;
      }
    }
    serve(work);
    const std::lock_guard lock(mutex_);
    left |= !work.served && !work.ends.empty();
  }
  return left;
}

bool ForeignHoldings::try_again() noexcept {
  std::vector<std::shared_ptr<ForeignHoldings>> all;
  {
    ForeignHoldingsRegistry& registry = ForeignHoldingsRegistry::get();
    const std::lock_guard lock(registry.mutex);
    for (ForeignHoldings* each : registry.all) {
      if (std::shared_ptr<ForeignHoldings> held = each->weak_from_this().lock()) {
        all.push_back(std::move(held));
      }
    }
  }
  bool left = false;
  for (const std::shared_ptr<ForeignHoldings>& each : all) {
    left |= each->serve_what_waits();
  }
  return left;
}

void ForeignHoldings::run(Work& work) noexcept {
  for (;;) {
    std::vector<std::move_only_function<void()>> ends;
    {
      std::unique_lock lock(mutex_);
      work.came.wait_for(lock, kLingers, [&work] { return !work.ends.empty(); });
      if (work.ends.empty()) {
        work.served = false;
        return;
      }
      ends.swap(work.ends);
    }
    for (auto& end : ends) {
      end();
      end = nullptr;
    }
  }
}

ForeignFd::ForeignFd(UniqueFd fd, std::shared_ptr<ForeignHoldings> holdings) noexcept
    : fd_(std::move(fd)), holdings_(std::move(holdings)) {
  if (fd_ && holdings_ != nullptr) {
    holdings_->count_descriptor();
  }
}

ForeignFd& ForeignFd::operator=(ForeignFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
    holdings_ = std::move(other.holdings_);
  }
  return *this;
}

ForeignFd ForeignFd::duplicate() const {
  return {UniqueFd(fd_ ? ::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0) : -1), holdings_};
}

void ForeignFd::reset() noexcept {
  if (!fd_ || holdings_ == nullptr) {
    fd_.reset();
    return;
  }
  const auto lane = is_memory(fd_.get()) ? ForeignHoldings::Lane::bounded : ForeignHoldings::Lane::unbounded;
  ForeignHoldings& holdings = *holdings_;
  holdings.let_go(lane, [last = std::move(*this)]() mutable { last.close_here(); });
}

void ForeignFd::close_here() noexcept {
  const bool counted = fd_ && holdings_ != nullptr;
  fd_.reset();
  if (counted) {
    holdings_->discount_descriptor();
  }
}

}  // namespace ringway
