// Rules of a vhost-user session and of a ring that are the same for every type of device. Private to the checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "bench/check_report.hpp"
#include "driver/driver_session.hpp"
#include "ring/spec.hpp"

namespace ringway::check {

// How it went with a request whose data lies in one of several regions of memory.
struct RegionUse {
  bool works = false;
  bool shows_data = false;  // the data's way was seen, and not only that the request came to its end
  std::string seen;
};

// A session with one running queue, through which plain requests go: reads of a disk, frames of a network card.
class Session {
 public:
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  virtual ~Session() = default;

  [[nodiscard]] virtual DriverSession& session() = 0;
  [[nodiscard]] virtual DriverQueue& queue() = 0;
  // Queues so many requests, unpublished. False if there is no room.
  [[nodiscard]] virtual bool submit(std::uint32_t count) = 0;
  // Takes completions, `most` at most.
  [[nodiscard]] virtual std::size_t reap(std::size_t most) = 0;
  // True while a plain request still works: what must hold after each abuse.
  [[nodiscard]] virtual bool alive() = 0;
  // A request with its data in data region `index`.
  [[nodiscard]] virtual RegionUse use_region(std::uint32_t index) = 0;

 protected:
  Session() = default;
  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) noexcept = default;
};

// A back-end of any type.
struct Backend {
  struct Wish {
    std::uint32_t data_regions = 0;  // beside that of the rings; 0: data lies there too
    bool memory_slots = false;
    bool enable = true;  // the rings; else they are started, but disabled
  };
  std::function<Result<std::unique_ptr<Session>>(const Wish& wish)> open;
  const char* request = "request";  // what a plain one is called
  std::uint64_t offered = 0;
  std::uint64_t protocol_offered = 0;
  Duration answer_limit;
  bool packed = false;
  std::uint32_t descriptors = 1;                  // that a request takes of the ring without an indirect table
  std::uint32_t config_bytes = 0;                 // of the configuration that has to be there
  std::span<const std::uint32_t> config_offsets;  // of its fields, where pieces are read

  [[nodiscard]] bool offers(std::uint64_t bits) const { return (offered & bits) == bits; }
  [[nodiscard]] bool offers_protocol(std::uint64_t bits) const { return (protocol_offered & bits) == bits; }
};

// A rule for one type of device, which judges it in a Context of its own. `Needs` says what else must be there for it.
template <typename Context, typename Needs>
struct RuleFor {
  const char* name;
  const char* where;         // the specification's section
  bool each_layout = false;  // runs for split and packed
  Needs needs{};
  Result<Verdict> (*run)(const Context& context) = nullptr;
};

// As RuleFor::run: a rule that every type of device has.
template <Result<Verdict> (*kRule)(const Backend& backend), typename Context>
[[nodiscard]] Result<Verdict> shared(const Context& context) {
  return kRule(context.backend());
}

template <typename Rule>
using RuleGroups = std::initializer_list<std::span<const Rule>>;

// Without a back-end. The exit code.
template <typename Rule>
[[nodiscard]] int list_groups(RuleGroups<Rule> groups, const Report::Options& options, std::ostream& out) {
  std::vector<Listed> all;
  for (const std::span<const Rule> rules : groups) {
    for (const Rule& rule : rules) {
      all.push_back({.name = rule.name, .where = rule.where, .each_layout = rule.each_layout});
    }
  }
  return list_rules(all, options, out);
}

// All rules for split rings, and then those for each layout for packed ones, if the back-end has them. The exit code.
template <typename Rule, typename Context, typename Judge>
[[nodiscard]] int run_groups(RuleGroups<Rule> groups, Context& context, const Report::Options& options, std::ostream& out,
                             const Judge& judge) {
  Report report(options, out);
  for (const bool packed : {false, true}) {
    if (packed && !context.offers(spec::kFeatureRingPacked)) {
      report.leave_out("packed: all rules", "virtio 2.8", "the back-end doesn't offer VIRTIO_F_RING_PACKED");
      break;
    }
    context.packed = packed;
    for (const std::span<const Rule> rules : groups) {
      run_rules(rules, context, report, judge);
    }
  }
  return report.end();
}

// Spins, so that calls stay as the rule has set them.
[[nodiscard]] std::size_t spin_for_completions(Session& session, std::size_t wanted, Duration limit);
[[nodiscard]] bool called_within(DriverQueue& queue, int milliseconds);
// Long enough for a wrong call or frame to arrive, short enough to wait for nothing.
inline constexpr int kQuietMilliseconds = 100;

// Of a session.
[[nodiscard]] Result<Verdict> config_in_pieces(const Backend& backend);
[[nodiscard]] Result<Verdict> config_at_its_edges(const Backend& backend);
[[nodiscard]] Result<Verdict> one_reply(const Backend& backend);
[[nodiscard]] Result<Verdict> unknown_message(const Backend& backend);
[[nodiscard]] Result<Verdict> several_regions(const Backend& backend);
[[nodiscard]] Result<Verdict> memory_replaced(const Backend& backend);
[[nodiscard]] Result<Verdict> memory_slots(const Backend& backend);
[[nodiscard]] Result<Verdict> reconnects_under_load(const Backend& backend);

// Of a ring.
[[nodiscard]] Result<Verdict> no_call_while_suppressed(const Backend& backend);
[[nodiscard]] Result<Verdict> call_when_asked_for(const Backend& backend);
[[nodiscard]] Result<Verdict> event_index_crossing(const Backend& backend);
[[nodiscard]] Result<Verdict> idle_ring_wakes_by_a_kick(const Backend& backend);
[[nodiscard]] Result<Verdict> exact_base(const Backend& backend);
[[nodiscard]] Result<Verdict> stop_and_start(const Backend& backend);

}  // namespace ringway::check
