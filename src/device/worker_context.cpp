#include "device/worker_context.hpp"

#include <algorithm>

#include "base/fence.hpp"

namespace ringway {

void WorkerContext::forget(Queue& queue) {
  for (auto* list : {&active, &finished, &unsettled, &timed}) {
    std::ranges::replace(*list, &queue, nullptr);
  }
  stages.forget(&queue);
  if (queue.is_source) {
    std::erase(source_queues, &queue);
    std::erase(sources, &queue.source);
    queue.is_source = false;
  }
  const std::uint32_t weight = queue.source.weight_permille;
  queue.source = PollSource{};  // its next driver is another one
  queue.source.weight_permille = weight;
  std::erase(running, &queue);
  std::erase(polled, &queue);
  for (BlkSlotShare* share : starved) {
    std::erase(share->waiting, &queue);
  }
  std::erase_if(starved, [](const BlkSlotShare* share) { return share->waiting.empty(); });
  queue.is_active = queue.has_finished = queue.is_unsettled = queue.is_starved = queue.is_polled = queue.is_timed = false;
  queue.allowance = 0;
}

void WorkerContext::wake_who_has_room() {
  woken_.clear();
  bool left_some = false;
  std::erase_if(starved, [&](BlkSlotShare* share) {
    const auto room = slots.room(*share);
    const auto count = std::min<std::size_t>(room, share->waiting.size());
    for (std::size_t i = 0; i < count; ++i) {
      Queue* queue = share->waiting[i];
      queue->is_starved = false;
      queue->allowance = static_cast<std::uint32_t>(room / count);
      if (queue->is_active) {  // by a kick, meanwhile; but its turn is before those that didn't wait
        std::ranges::replace(active, queue, nullptr);
      }
      queue->is_active = true;
      woken_.push_back(queue);
    }
    share->waiting.erase(share->waiting.begin(), share->waiting.begin() + static_cast<std::ptrdiff_t>(count));
    left_some |= count != 0 && !share->waiting.empty();
    return share->waiting.empty();
  });
  active.insert(active.begin(), woken_.begin(), woken_.end());
  // The woken ones may not need what was set aside for them. So there is another look at those that were not, until one
  // finds no room.
  if (left_some) {
    slots.note_replenished();
  }
}

bool WorkerContext::pump_active() noexcept {
  bool worked = false;
  std::size_t kept = 0;
  // A pump may activate others, which are then appended and pumped in this turn too; forget() leaves nulls.
  for (std::size_t i = 0; i < active.size(); ++i) {
    Queue* queue = active[i];
    if (queue == nullptr) {
      continue;
    }
    switch (queue->pump(*this)) {
      case Queue::Pumped::some:
      case Queue::Pumped::budget:
        note_found(*queue);
        worked = true;
        break;
      case Queue::Pumped::nothing:
        if (!queue->has_finished) {
          note_idle(*queue);
        }
        break;
      case Queue::Pumped::starved:  // perhaps after a few
        worked = true;
        [[fallthrough]];
      case Queue::Pumped::inactive:
        queue->is_active = false;
        continue;
    }
    active[kept++] = queue;
  }
  active.resize(kept);
  return worked;
}

void WorkerContext::publish_finished() noexcept {
  for (std::size_t i = 0; i < finished.size(); ++i) {
    Queue* queue = finished[i];
    if (queue != nullptr) {
      queue->has_finished = false;
      note_found(*queue);
      queue->publish();
    }
  }
  finished.clear();
}

void WorkerContext::settle_sources() noexcept {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < source_queues.size(); ++i) {
    Queue* queue = source_queues[i];
    if (queue->source.has_left()) {
      queue->is_source = false;
      continue;
    }
    source_queues[kept] = queue;
    sources[kept++] = &queue->source;
    if (queue->is_active && !queue->source.worth_scanning()) {
      if (queue->arm()) {
        queue->suppress();  // work came meanwhile
      } else {
        std::ranges::replace(active, queue, nullptr);
        queue->is_active = false;
      }
    }
  }
  source_queues.resize(kept);
  sources.resize(kept);
}

void WorkerContext::set_keeps_sources(bool keeps) noexcept {
  keeps_sources = keeps;
  for (Queue* queue : source_queues) {
    queue->is_source = false;
    const std::uint32_t weight = queue->source.weight_permille;
    queue->source = PollSource{};
    queue->source.weight_permille = weight;
  }
  source_queues.clear();
  sources.clear();
}

void WorkerContext::activate_sources() noexcept {
  for (Queue* queue : source_queues) {
    if (!queue->is_active && queue->source.worth_scanning() && queue->source.is_waiting()) {
      activate(*queue);
      queue->suppress();
    }
  }
}

void WorkerContext::settle_each() noexcept {
  // Between the used positions that publish() stored and what settle() reads of the drivers' suppression. Partner: the
  // driver's full fence between its store of that and its second look at the ring (§2.7.10, §2.8.22).
  full_fence();
  for (Queue* queue : unsettled) {
    if (queue != nullptr) {
      queue->is_unsettled = false;
      queue->settle();
    }
  }
  unsettled.clear();
}

}  // namespace ringway
