// Any sequence of messages, with memory files or eventfds beside them, to a real session. Whatever comes: no crash, the
// device is attached and detached once, the fds are all closed, and the device's own checks of the order of calls hold.
//
// Input, again and again: request, control (bits 0–1: number of fds, bit 2: memory files instead of eventfds, bit 3:
// NEED_REPLY, bit 4: hold the device's answers, bit 5: release them, bit 6: the usual handshake first), payload size
// (0…255), payload.
#include <spdlog/spdlog.h>

#include "vhost_user/test_session.hpp"

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ringway;
  using namespace ringway::vhost_user;
  const std::size_t before = count_open_fds();
  {
    SessionBench bench;
    const UniqueFd event = make_event();
    bench.connect();
    std::size_t at = 0;
    while (size - at >= 3 && !bench.ended) {
      const std::uint8_t request = data[at];
      const unsigned control = data[at + 1];
      const std::size_t bytes = std::min<std::size_t>(data[at + 2], size - at - 3);
      const std::span<const std::byte> payload = std::as_bytes(std::span(data + at + 3, bytes));
      at += 3 + bytes;
      if ((control & 64U) != 0) {
        bench.negotiate();
        bench.give_memory();
        bench.describe_ring(0);
      }
      bench.device.hold = (control & 16U) != 0;
      const std::vector<int> fds(control & 3U, (control & 4U) != 0 ? bench.memory.get() : event.get());
      const std::uint32_t flags = kVersion | ((control & 8U) != 0 ? kFlagNeedReply : 0U);
      // A session that has ended or waits doesn't read; the front-end's own bound is the socket's buffer.
      const Result<std::size_t> sent = send_some(bench.front->socket(), encode(request, flags, payload), fds);
      if (!sent || *sent == 0) {
        break;
      }
      bench.step();
      if ((control & 32U) != 0) {
        bench.device.release();
        bench.step();
      }
      while (bench.front->receive(Duration{})) {
      }
    }
    bench.front.reset();
    bench.step();
    bench.device.hold = false;
    bench.device.release();
    RW_CHECK(bench.finish());
    RW_CHECK(bench.device.attached == 1 && bench.device.count("detach") == 1);
  }
  RW_CHECK(count_open_fds() == before);
  return 0;
}
