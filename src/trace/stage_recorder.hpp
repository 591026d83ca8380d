// Follows some of a worker's requests through their stages.
//
// Whoever pops a request asks due(), begins a record if it is, keeps the pointer with the request, and stamps each stage
// that the request passes. Publishing and calling are said of a queue: they hold for all its records that are completed. The
// worker ends its turns' records by settle(). What is lost on the way (its ring stopped, the device went) is dropped.
//
// Owner: the worker. Any thread: every(), intervals(), followed(), missed().
#pragma once

#include <sys/sdt.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.hpp"
#include "metrics/counter.hpp"
#include "trace/stage.hpp"
#include "trace/stage_clock.hpp"
#include "trace/stage_histogram.hpp"
#include "trace/stage_stream.hpp"

namespace ringway {

// A record under way. Which one it is says its place; the rest is the recorder's.
struct TracedRequest {
  StageRecord record;
  const void* owner = nullptr;    // the queue
  std::uint32_t prepared_at = 0;  // its place in the list of those that are to be submitted; kNowhere
};

class StageRecorder {
 public:
  // Followed at a time; with more in flight than that, fewer than were asked for are followed.
  static constexpr std::size_t kRequests = 1024;
  // One in so many, if nobody says otherwise: less than 1 % of the instructions of a request.
  static constexpr std::uint32_t kEveryDefault = 1024;

  explicit StageRecorder(std::uint32_t worker);
  StageRecorder(const StageRecorder&) = delete;
  StageRecorder& operator=(const StageRecorder&) = delete;
  ~StageRecorder() = default;

  // --- the worker ---
  // One in `every` requests is followed; 0: none. 1: all.
  void set_every(std::uint32_t every) noexcept {
    every_.store(every, std::memory_order_relaxed);
    countdown_ = every == 0 ? UINT64_MAX : every;
  }
  // Where whole records go; null: nowhere.
  void set_stream(std::shared_ptr<StageStream> stream) noexcept { stream_ = std::move(stream); }

  // Whether this request, or one of these, is to be followed. Once for each.
  [[nodiscard]] bool due() noexcept { return RW_UNLIKELY(--countdown_ == 0); }
  [[nodiscard]] bool due(std::uint64_t requests) noexcept {
    if (RW_UNLIKELY(countdown_ <= requests)) {
      countdown_ = 1;
      return requests != 0;
    }
    countdown_ -= requests;
    return false;
  }
  // Whether due(requests) may come true.
  [[nodiscard]] bool near(std::uint64_t requests) const noexcept { return RW_UNLIKELY(countdown_ <= requests); }
  // After due(). `kicked`: when the kick was seen, in ticks; 0: there was none. Null: too many are followed already.
  [[nodiscard, gnu::cold]] TracedRequest* begin(const void* owner, std::uint32_t device, std::uint16_t queue,
                                                std::uint64_t kicked) noexcept;
  template <Stage stage>
  void stamp(TracedRequest& request) noexcept {
    request.record.ticks[static_cast<std::size_t>(stage)] = StageClock::now();
    probe<stage>(request.record);
  }
  // It is submitted with the turn's others, by submitted(); or has been by the time it completes.
  void prepare(TracedRequest& request) noexcept;
  [[nodiscard]] bool has_prepared() const noexcept { return !prepared_.empty(); }
  void submitted() noexcept;
  void complete(TracedRequest& request) noexcept;
  void drop(TracedRequest& request) noexcept;

  // Of queues that published, or called. A load and a branch as long as nothing of the worker is followed.
  void published(const void* owner) noexcept {
    if (RW_UNLIKELY(!completed_.empty())) {
      stamp_all(owner, Stage::published);
    }
  }
  void called(const void* owner) noexcept {
    if (RW_UNLIKELY(!completed_.empty())) {
      stamp_all(owner, Stage::called);
    }
  }
  // Ends all that were published before.
  void settle() noexcept {
    if (RW_UNLIKELY(!completed_.empty())) {
      end_published();
    }
  }
  // The queue goes. What it has in flight is dropped when it completes.
  void forget(const void* owner) noexcept;

  // --- any thread ---
  [[nodiscard]] std::uint32_t every() const noexcept { return every_.load(std::memory_order_relaxed); }
  [[nodiscard]] const StageHistograms& histograms() const noexcept { return *histograms_; }
  [[nodiscard]] std::uint64_t missed() const noexcept { return missed_.get(); }  // due, but too many were followed

 private:
  static constexpr std::uint32_t kNowhere = UINT32_MAX;

  template <Stage stage>
  static void probe([[maybe_unused]] const StageRecord& record) noexcept {
    if constexpr (stage == Stage::popped) {
      DTRACE_PROBE3(ringway, stage_popped, record.device, record.queue, record.at(stage));
    } else if constexpr (stage == Stage::parsed) {
      DTRACE_PROBE3(ringway, stage_parsed, record.device, record.queue, record.at(stage));
    } else if constexpr (stage == Stage::submitted) {
      DTRACE_PROBE3(ringway, stage_submitted, record.device, record.queue, record.at(stage));
    } else if constexpr (stage == Stage::completed) {
      DTRACE_PROBE3(ringway, stage_completed, record.device, record.queue, record.at(stage));
    }
  }
  void unlist(TracedRequest& request) noexcept;
  [[gnu::cold]] void stamp_all(const void* owner, Stage stage) noexcept;
  [[gnu::cold]] void end_published() noexcept;
  void give_back(TracedRequest& request) noexcept { free_.push_back(&request); }

  const std::uint32_t worker_;
  std::uint64_t countdown_ = UINT64_MAX;
  std::atomic<std::uint32_t> every_{0};
  std::unique_ptr<TracedRequest[]> requests_;
  std::size_t fresh_ = 0;  // from here on never used: untouched memory
  std::vector<TracedRequest*> free_;
  std::vector<TracedRequest*> prepared_;
  std::vector<TracedRequest*> completed_;
  std::shared_ptr<StageStream> stream_;
  std::unique_ptr<StageHistograms> histograms_;
  Counter missed_;
};

}  // namespace ringway
