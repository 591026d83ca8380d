// Bytes as they come from a socket, in pieces of any size and with fds beside any of them. The reader must give whole
// messages that are the bytes sent, or say that the stream is broken, and own every fd.
//
// Input: first byte: the size of the pieces; the rest is the stream.
#include "vhost_user/test_session.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ringway;
  using namespace ringway::vhost_user;
  if (size < 1) {
    return 0;
  }
  static const UniqueFd event = make_event();
  const std::size_t piece = 1U + data[0] % 64U;
  const std::span<const std::byte> stream = std::as_bytes(std::span(data + 1, size - 1));
  auto [sender, receiver] = make_socket_pair();
  MessageReader reader;
  std::size_t seen = 0;
  const auto drain = [&] {
    for (;;) {
      const MessageReader::Status status = reader.read(receiver.get());
      if (status != MessageReader::Status::complete) {
        return status == MessageReader::Status::incomplete;
      }
      const Message message = reader.take();
      const std::vector<std::byte> again = encode(message.header.request, message.header.flags, message.payload);
      RW_CHECK(seen + again.size() <= stream.size());
      RW_CHECK(std::equal(again.begin(), again.end(), stream.begin() + static_cast<std::ptrdiff_t>(seen)));
      RW_CHECK(message.fds.size() <= limits::kFdsPerMessageMax);
      seen += again.size();
    }
  };
  bool sound = true;
  for (std::size_t at = 0; sound && at < stream.size(); at += piece) {
    const std::span<const std::byte> bytes = stream.subspan(at, std::min(piece, stream.size() - at));
    const int fd = event.get();
    const bool with_fd = (std::to_integer<unsigned>(bytes[0]) & 7U) == 7U;
    const Result<std::size_t> sent = send_some(sender.get(), bytes, with_fd ? std::span(&fd, 1) : std::span<const int>{});
    RW_CHECK(sent.has_value() && *sent == bytes.size());
    sound = drain();
  }
  return 0;
}
