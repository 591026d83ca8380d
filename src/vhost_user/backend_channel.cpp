#include "vhost_user/backend_channel.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

namespace ringway::vhost_user {

Result<std::unique_ptr<BackendChannel>> BackendChannel::create(ForeignFd socket, Loop& loop, bool with_replies) {
  std::unique_ptr<BackendChannel> channel(new BackendChannel(std::move(socket), loop, with_replies));
  RW_TRY_ASSIGN(channel->watch_, loop.watch(channel->socket_.get(), EPOLLIN, *channel));
  return channel;
}

BackendChannel::~BackendChannel() {
  if (watch_) {
    loop_.unwatch(watch_);
  }
}

bool BackendChannel::request(Note note) {
  if (!socket_) {
    return false;
  }
  if (std::ranges::find(unanswered_, note) != unanswered_.end()) {
    waiting_.insert(note);
    return true;
  }
  return send(note);
}

bool BackendChannel::send(Note note) {
  const VringState state{.index = note.index, .num = 0};
  const bool of_ring = note.request != BackendRequest::config_change_msg;
  const std::uint32_t flags = kVersion | (with_replies_ ? kFlagNeedReply : 0U);
  const std::vector<std::byte> bytes =
      encode(static_cast<std::uint32_t>(note.request), flags, of_ring ? bytes_of(state) : std::span<const std::byte>{});
  const Result<std::size_t> sent = send_some(socket_.get(), bytes, {});
  if (!sent) {
    fail_channel(sent.error().message);
    return false;
  }
  if (*sent == bytes.size()) {
    if (with_replies_) {
      unanswered_.push_back(note);
    }
    return true;
  }
  if (*sent > 0) {
    // The kernel takes so small a message whole or not at all; half of one would garble all that follows.
    fail_channel("a request was cut in two");
    return false;
  }
  // The socket is full of requests that the front-end hasn't read. Its answers will say when it has.
  if (unanswered_.empty()) {
    return false;
  }
  waiting_.insert(note);
  return true;
}

void BackendChannel::send_waiting() {
  std::set<Note> waiting = std::exchange(waiting_, {});
  for (const Note note : waiting) {
    if (!request(note)) {
      return;
    }
  }
}

void BackendChannel::on_ready(std::uint32_t /*events*/) noexcept {
  bool answered = false;
  while (socket_) {
    switch (reader_.read(socket_.get())) {
      case MessageReader::Status::complete: {
        const Message answer = reader_.take();
        if ((answer.header.flags & kFlagReply) == 0) {
          return fail_channel("the front-end sent a request on it");
        }
        if (!unanswered_.empty()) {
          unanswered_.pop_front();
          answered = true;
        }
        break;
      }
      case MessageReader::Status::incomplete:
        if (answered) {
          send_waiting();
        }
        return;
      case MessageReader::Status::closed:
        return fail_channel("the front-end has closed it");
      case MessageReader::Status::broken:
        return fail_channel(reader_.error());
    }
  }
}

void BackendChannel::fail_channel(const std::string& reason) {
  spdlog::info("back-end channel ended: {}", reason);
  loop_.unwatch(std::exchange(watch_, {}));
  socket_.reset();
  unanswered_.clear();
  waiting_.clear();
}

}  // namespace ringway::vhost_user
