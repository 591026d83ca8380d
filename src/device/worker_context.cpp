#include "device/worker_context.hpp"

#include <algorithm>

namespace ringway {

void WorkerContext::forget(Queue& queue) {
  for (auto* list : {&active, &finished, &starved}) {
    std::ranges::replace(*list, &queue, nullptr);
  }
  std::erase(running, &queue);
  queue.is_active = queue.has_finished = queue.is_starved = false;
}

}  // namespace ringway
