// A virtqueue as the specification means it, with no layout, index or memory order: what both layouts are compared with.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace ringway::testing {

struct ModelBuffer {
  std::uint64_t address = 0;
  std::uint32_t bytes = 0;
  bool writable = false;
  bool operator==(const ModelBuffer&) const = default;
};

// One direction's notifications: the producer counts what it publishes, the consumer says from which count on it wants to
// hear.
class ModelEvent {
 public:
  explicit ModelEvent(bool event_index) : event_index_(event_index) {}
  void suppress() { state_ = State::suppressed; }
  void arm(std::uint64_t consumed) {
    state_ = State::armed;
    event_ = consumed;
  }
  // A notification is required after publishing [from, to), or forbidden, or (nothing) harmless either way.
  [[nodiscard]] std::optional<bool> wanted(std::uint64_t from, std::uint64_t to) const {
    if (from == to || state_ == State::suppressed) {
      return false;
    }
    if (!event_index_ || (from <= event_ && event_ < to)) {
      return true;
    }
    return std::nullopt;  // armed for a count that has passed: later laps may match it by chance
  }

 private:
  enum class State : std::uint8_t { suppressed, armed };
  bool event_index_;
  State state_ = State::suppressed;
  std::uint64_t event_ = 0;
};

class RingModel {
 public:
  struct ModelChain {
    std::uint64_t token = 0;
    std::vector<ModelBuffer> buffers;
    std::uint32_t descriptors = 0;
  };
  struct ModelUsed {
    std::uint64_t token = 0;
    std::uint32_t written_bytes = 0;
    bool operator==(const ModelUsed&) const = default;
  };

  RingModel(std::uint32_t size, bool indirect, std::uint32_t table_entries, bool event_index, bool in_order)
      : kicks(event_index), calls(event_index), free_(size), in_order_(in_order), table_(indirect ? table_entries : 0) {}

  // Driver.
  bool add(std::vector<ModelBuffer> buffers, std::uint64_t token) {
    const auto count = static_cast<std::uint32_t>(buffers.size());
    const std::uint32_t descriptors = count >= 2 && count <= table_ ? 1 : count;
    if (descriptors > free_) {
      return false;
    }
    free_ -= descriptors;
    added_.push_back({token, std::move(buffers), descriptors});
    return true;
  }
  std::optional<bool> publish_avail() {
    const std::uint64_t from = published_;
    published_ += added_.size();
    available_.insert(available_.end(), added_.begin(), added_.end());
    added_.clear();
    return kicks.wanted(from, published_);
  }
  std::optional<ModelUsed> take_used() {
    if (used_.empty()) {
      return std::nullopt;
    }
    const auto [used, descriptors] = used_.front();
    used_.pop_front();
    free_ += descriptors;
    ++taken_;
    return used;
  }
  bool arm_calls() {
    calls.arm(taken_);
    return !used_.empty();
  }

  // Device.
  std::optional<ModelChain> pop() {
    if (available_.empty()) {
      return std::nullopt;
    }
    ModelChain chain = available_.front();
    available_.pop_front();
    ++popped_;
    waiting_.push_back({chain, std::nullopt});
    return chain;
  }
  void push_used(std::uint64_t token, std::uint32_t written_bytes) {
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (it->chain.token == token) {
        it->written = written_bytes;
        if (!in_order_) {
          pushed_.push_back({{token, written_bytes}, it->chain.descriptors});
          waiting_.erase(it);
        }
        break;
      }
    }
    while (in_order_ && !waiting_.empty() && waiting_.front().written.has_value()) {
      const Waiting& first = waiting_.front();
      pushed_.push_back({{first.chain.token, *first.written}, first.chain.descriptors});
      waiting_.pop_front();
    }
  }
  [[nodiscard]] bool has_unpublished() const { return !pushed_.empty(); }
  void publish_used() {
    returned_ += pushed_.size();
    used_.insert(used_.end(), pushed_.begin(), pushed_.end());
    pushed_.clear();
  }
  std::optional<bool> should_call() {
    const std::uint64_t from = asked_;
    asked_ = returned_;
    return calls.wanted(from, returned_);
  }
  bool arm_kicks() {
    kicks.arm(popped_);
    return !available_.empty();
  }
  [[nodiscard]] bool has_work() const { return !available_.empty(); }

  ModelEvent kicks;
  ModelEvent calls;

 private:
  struct Waiting {
    ModelChain chain;
    std::optional<std::uint32_t> written;
  };
  struct Given {
    ModelUsed used;
    std::uint32_t descriptors = 0;
  };
  std::uint32_t free_;
  bool in_order_;
  std::uint32_t table_;
  std::deque<ModelChain> added_, available_;
  std::deque<Waiting> waiting_;
  std::deque<Given> pushed_, used_;
  std::uint64_t published_ = 0, popped_ = 0, returned_ = 0, asked_ = 0, taken_ = 0;
};

}  // namespace ringway::testing
