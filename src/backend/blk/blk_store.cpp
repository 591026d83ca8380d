#include "backend/blk/blk_store.hpp"

namespace ringway {

const char* to_string(BlkFailure failure) noexcept {
  switch (failure) {
    case BlkFailure::no_space:
      return "no_space";
    case BlkFailure::guest_memory:
      return "guest_memory";
    case BlkFailure::end_of_file:
      return "end_of_file";
    case BlkFailure::io:
      return "io";
  }
  return "unknown";
}

void BlkChannelCounters::add_failure(BlkFailure failure, int code) noexcept {
  Counter& counter = failures[static_cast<std::size_t>(failure)];
  counter.add();
  if (counter.get() == 1 && listener != nullptr) {
    listener->on_first_failure(failure, code);
  }
}

}  // namespace ringway
