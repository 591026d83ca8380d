// Receive-side scaling where the kernel chooses the queue: a program that it runs for each frame to a tap, and the map in
// which the program finds key and table (virtio 1.3 §5.1.6.5.6; TUNSETSTEERINGEBPF).
//
// The program hashes what request/net_hash.hpp does, but for the _EX types: by the addresses, and the ports where there are
// any, of IPv4 and IPv6, behind up to two tags and the same extension headers. Owner: the control thread.
#pragma once

#include <linux/bpf.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/net/net_port.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "request/net_hash.hpp"

namespace ringway {

class TapSteering {
 public:
  static constexpr std::uint32_t kTypes = kNetHashTypesPlain;

  // Errors: the kernel doesn't let this process load programs (CAP_BPF), or is without them.
  [[nodiscard]] static Result<std::unique_ptr<TapSteering>> load();

  // For frames from then on; one that comes meanwhile may be placed by parts of both. `queues` are the kernel's numbers of
  // the tap's queues, by pair. REQUIRES: all pairs of the table are among them. Errors: the kernel's.
  [[nodiscard]] Result<> set(const NetSteering& by, std::span<const std::uint32_t> queues);
  // For TUNSETSTEERINGEBPF.
  [[nodiscard]] int program() const noexcept { return program_.get(); }
  [[nodiscard]] int map() const noexcept { return map_.get(); }

 private:
  TapSteering(UniqueFd map, UniqueFd program) : map_(std::move(map)), program_(std::move(program)) {}

  const UniqueFd map_;
  const UniqueFd program_;
};

// The program over that map, as a program of any kind that is given a frame from its Ethernet header on. For load(), and for
// tests.
[[nodiscard]] std::vector<bpf_insn> tap_steering_program(int map);

}  // namespace ringway
