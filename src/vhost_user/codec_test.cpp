#include "vhost_user/codec.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vhost_user/test_session.hpp"

namespace ringway::vhost_user {
namespace {

using Status = MessageReader::Status;

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7);
  }
  return bytes;
}

std::size_t must_send(const UniqueFd& socket, std::span<const std::byte> bytes, std::span<const int> fds = {}) {
  const Result<std::size_t> sent = send_some(socket.get(), bytes, fds);
  return sent ? *sent : 0;
}

TEST(MessageReader, MessageThatComesByteByByteIsPutTogetherWithItsFd) {
  auto [sender, receiver] = make_socket_pair();
  const std::vector<std::byte> payload = some_bytes(40);
  const std::vector<std::byte> bytes = encode(9, kVersion, payload);
  const UniqueFd event = make_event();
  const int fd = event.get();
  MessageReader reader;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(reader.read(receiver.get()), Status::incomplete) << "before byte " << i;
    ASSERT_EQ(must_send(sender, std::span(bytes).subspan(i, 1), i == 17 ? std::span(&fd, 1) : std::span<const int>{}), 1U);
  }
  ASSERT_EQ(reader.read(receiver.get()), Status::complete);
  const Message message = reader.take();
  EXPECT_EQ(message.header.request, 9U);
  EXPECT_EQ(message.payload, payload);
  EXPECT_EQ(message.fds.size(), 1U);
  EXPECT_FALSE(message.fds_lost);
  EXPECT_FALSE(reader.in_message());
}

TEST(MessageReader, TwoMessagesInOneWriteAreTwoMessages) {
  auto [sender, receiver] = make_socket_pair();
  std::vector<std::byte> bytes = encode(1, kVersion, {});
  const std::vector<std::byte> second = encode(2, kVersion, some_bytes(8));
  bytes.insert(bytes.end(), second.begin(), second.end());
  ASSERT_EQ(must_send(sender, bytes), bytes.size());
  MessageReader reader;
  ASSERT_EQ(reader.read(receiver.get()), Status::complete);
  EXPECT_EQ(reader.take().header.request, 1U);
  ASSERT_EQ(reader.read(receiver.get()), Status::complete);
  EXPECT_EQ(reader.take().payload, some_bytes(8));
  EXPECT_EQ(reader.read(receiver.get()), Status::incomplete);
}

TEST(MessageReader, PayloadAtTheLimitIsReadAndOneByteMoreIsRefused) {
  auto [sender, receiver] = make_socket_pair();
  MessageReader reader;
  const std::vector<std::byte> largest = encode(5, kVersion, some_bytes(limits::kMessagePayloadMax));
  ASSERT_EQ(must_send(sender, largest), largest.size());
  ASSERT_EQ(reader.read(receiver.get()), Status::complete);
  EXPECT_EQ(reader.take().payload.size(), limits::kMessagePayloadMax);

  const Header header{.request = 5, .flags = kVersion, .payload_bytes = limits::kMessagePayloadMax + 1};
  ASSERT_EQ(must_send(sender, bytes_of(header)), sizeof(header));
  EXPECT_EQ(reader.read(receiver.get()), Status::broken);
  EXPECT_NE(reader.error().find("SET_MEM_TABLE"), std::string::npos) << reader.error();
  EXPECT_NE(reader.error().find("4097"), std::string::npos) << reader.error();
  EXPECT_EQ(reader.read(receiver.get()), Status::broken) << "a broken stream stays broken";
}

TEST(MessageReader, OnlyVersionOneIsSpoken) {
  for (const std::uint32_t version : {0U, 2U, 3U}) {
    auto [sender, receiver] = make_socket_pair();
    MessageReader reader;
    const Header header{.request = 1, .flags = version, .payload_bytes = 0};
    ASSERT_EQ(must_send(sender, bytes_of(header)), sizeof(header));
    EXPECT_EQ(reader.read(receiver.get()), Status::broken) << version;
  }
}

TEST(MessageReader, EndOfStreamTellsWhetherItCutAMessage) {
  auto [sender, receiver] = make_socket_pair();
  MessageReader reader;
  ASSERT_EQ(must_send(sender, some_bytes(5)), 5U);
  sender.reset();
  EXPECT_EQ(reader.read(receiver.get()), Status::closed);
  EXPECT_TRUE(reader.in_message());

  auto [second_sender, second_receiver] = make_socket_pair();
  MessageReader second;
  second_sender.reset();
  EXPECT_EQ(second.read(second_receiver.get()), Status::closed);
  EXPECT_FALSE(second.in_message());
}

TEST(MessageReader, SurplusFdsBreakTheStreamAndAreClosed) {
  auto [sender, receiver] = make_socket_pair();
  const UniqueFd event = make_event();
  std::array<int, limits::kFdsPerMessageMax> fds{};
  fds.fill(event.get());
  const std::size_t before = count_open_fds();
  const std::vector<std::byte> bytes = encode(5, kVersion, some_bytes(8));
  ASSERT_EQ(must_send(sender, std::span(bytes).first(12), fds), 12U);
  ASSERT_EQ(must_send(sender, std::span(bytes).subspan(12), fds), 8U);
  {
    MessageReader reader;
    ASSERT_EQ(reader.read(receiver.get()), Status::broken);
    EXPECT_THAT(reader.error(), ::testing::HasSubstr("16 descriptors, at most 8"));
    EXPECT_EQ(count_open_fds(), before + 2 * limits::kFdsPerMessageMax);
  }
  EXPECT_EQ(count_open_fds(), before);
}

TEST(MessageReader, MoreFdsAtOnceThanAMessageMayHaveBreakTheStream) {
  auto [sender, receiver] = make_socket_pair();
  const UniqueFd event = make_event();
  std::array<int, 20> fds{};
  fds.fill(event.get());
  const std::size_t before = count_open_fds();
  std::vector<std::byte> bytes = encode(5, kVersion, {});
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(fds))> control{};
  iovec piece{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(fds));
  std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(fds));
  ASSERT_EQ(::sendmsg(sender.get(), &header, 0), static_cast<ssize_t>(bytes.size()));
  {
    MessageReader reader;
    EXPECT_EQ(reader.read(receiver.get()), Status::broken);
  }
  EXPECT_EQ(count_open_fds(), before);
}

TEST(MessageReader, FdsOfAMessageThatNeverEndsAreClosedWithTheReader) {
  auto [sender, receiver] = make_socket_pair();
  const UniqueFd event = make_event();
  const int fd = event.get();
  const std::size_t before = count_open_fds();
  {
    MessageReader reader;
    ASSERT_EQ(must_send(sender, some_bytes(3), std::span(&fd, 1)), 3U);
    EXPECT_EQ(reader.read(receiver.get()), Status::incomplete);
    EXPECT_EQ(count_open_fds(), before + 1);
  }
  EXPECT_EQ(count_open_fds(), before);
}

TEST(MessageReader, ReceivedFdsAreClosedOnExec) {
  auto [sender, receiver] = make_socket_pair();
  const UniqueFd event = make_event();
  const int fd = event.get();
  const std::vector<std::byte> bytes = encode(12, kVersion, some_bytes(8));
  ASSERT_EQ(must_send(sender, bytes, std::span(&fd, 1)), bytes.size());
  MessageReader reader;
  ASSERT_EQ(reader.read(receiver.get()), Status::complete);
  const Message message = reader.take();
  ASSERT_EQ(message.fds.size(), 1U);
  EXPECT_NE(::fcntl(message.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SendSome, FullSocketTakesNothingAndKeepsTheFd) {
  auto [sender, receiver] = make_socket_pair();
  const std::vector<std::byte> chunk = some_bytes(4096);
  while (must_send(sender, chunk) > 0) {
  }
  const int fd = receiver.get();
  const Result<std::size_t> sent = send_some(sender.get(), chunk, std::span(&fd, 1));
  ASSERT_TRUE(sent.has_value());
  EXPECT_EQ(*sent, 0U);
}

TEST(SendSome, GonePeerIsAnErrorNotASignal) {
  auto [sender, receiver] = make_socket_pair();
  receiver.reset();
  const Result<std::size_t> sent = send_some(sender.get(), some_bytes(4), {});
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().code, EPIPE);
}

}  // namespace
}  // namespace ringway::vhost_user
