#include "trace/stage_recorder.hpp"

#include <algorithm>
#include <utility>

namespace ringway {

void StageHistograms::record(const StageRecord& record) noexcept {
  auto& intervals = of[static_cast<std::size_t>(record.kind)];
  std::uint64_t before = 0;
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    const std::uint64_t at = record.ticks[stage];
    if (at == 0) {
      continue;
    }
    if (before != 0) {
      intervals[stage].record(at > before ? StageClock::duration(at - before) : Duration{});
    }
    before = std::max(before, at);
  }
  intervals[0].record(StageClock::duration(before - record.first()));
}

StageRecorder::StageRecorder(std::uint32_t worker)
    : worker_(worker),
      requests_(std::make_unique_for_overwrite<TracedRequest[]>(kRequests)),
      histograms_(std::make_unique<StageHistograms>()) {
  free_.reserve(kRequests);
  prepared_.reserve(kRequests);
  completed_.reserve(kRequests);
  set_every(kEveryDefault);
}

TracedRequest* StageRecorder::begin(const void* owner, std::uint32_t device, std::uint16_t queue,
                                    std::uint64_t kicked) noexcept {
  set_every(every_.load(std::memory_order_relaxed));
  TracedRequest* request = nullptr;
  if (!free_.empty()) {
    request = free_.back();
    free_.pop_back();
  } else if (fresh_ < kRequests) {
    request = &requests_[fresh_++];
  } else {
    missed_.add();
    return nullptr;
  }
  request->record = {.device = device,
                     .queue = queue,
                     .kind = TracedKind::other,
                     .failed = false,
                     .bytes = 0,
                     .worker = worker_,
                     .ticks = {}};
  request->record.ticks[static_cast<std::size_t>(Stage::kicked)] = kicked;
  request->owner = owner;
  request->prepared_at = kNowhere;
  stamp<Stage::popped>(*request);
  return request;
}

void StageRecorder::prepare(TracedRequest& request) noexcept {
  stamp<Stage::submitted>(request);  // true if it completes at once
  request.prepared_at = static_cast<std::uint32_t>(prepared_.size());
  prepared_.push_back(&request);
}

void StageRecorder::submitted() noexcept {
  for (TracedRequest* request : prepared_) {
    request->prepared_at = kNowhere;
    stamp<Stage::submitted>(*request);
  }
  prepared_.clear();
}

void StageRecorder::unlist(TracedRequest& request) noexcept {
  if (request.prepared_at != kNowhere) {
    prepared_[request.prepared_at] = prepared_.back();
    prepared_[request.prepared_at]->prepared_at = request.prepared_at;
    prepared_.pop_back();
    request.prepared_at = kNowhere;
  }
}

void StageRecorder::complete(TracedRequest& request) noexcept {
  unlist(request);
  stamp<Stage::completed>(request);
  completed_.push_back(&request);
}

void StageRecorder::drop(TracedRequest& request) noexcept {
  unlist(request);
  give_back(request);
}

void StageRecorder::stamp_all(const void* owner, Stage stage) noexcept {
  const std::uint64_t now = StageClock::now();
  for (TracedRequest* request : completed_) {
    StageRecord& record = request->record;
    std::uint64_t& tick = record.ticks[static_cast<std::size_t>(stage)];
    // A call is for what was published before it, and a record's first one is its own.
    if (request->owner != owner || tick != 0 || (stage == Stage::called && !record.passed(Stage::published))) {
      continue;
    }
    tick = now;
    if (stage == Stage::published) {
      DTRACE_PROBE3(ringway, stage_published, record.device, record.queue, now);
    } else {
      DTRACE_PROBE3(ringway, stage_called, record.device, record.queue, now);
    }
  }
}

void StageRecorder::end_published() noexcept {
  std::size_t kept = 0;
  for (TracedRequest* request : completed_) {
    if (!request->record.passed(Stage::published)) {
      completed_[kept++] = request;
      continue;
    }
    histograms_->record(request->record);
    if (stream_ != nullptr) {
      stream_->put(request->record);
    }
    give_back(*request);
  }
  completed_.resize(kept);
}

void StageRecorder::forget(const void* owner) noexcept {
  std::erase_if(completed_, [&](TracedRequest* request) {
    if (request->owner == owner) {
      give_back(*request);
      return true;
    }
    return false;
  });
}

}  // namespace ringway
