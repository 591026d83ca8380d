#include "ring/chain.hpp"

namespace ringway {

const char* to_string(ChainFault fault) noexcept {
  switch (fault) {
    case ChainFault::none:
      return "none";
    case ChainFault::unmapped:
      return "unmapped";
    case ChainFault::zero_length:
      return "zero_length";
    case ChainFault::readable_after_writable:
      return "readable_after_writable";
    case ChainFault::bad_indirect:
      return "bad_indirect";
    case ChainFault::too_many_segments:
      return "too_many_segments";
  }
  return "unknown";
}

const char* to_string(RingFault fault) noexcept {
  switch (fault) {
    case RingFault::none:
      return "none";
    case RingFault::avail_jump:
      return "avail_jump";
    case RingFault::bad_head:
      return "bad_head";
    case RingFault::loop:
      return "loop";
    case RingFault::unmapped:
      return "unmapped";
  }
  return "unknown";
}

}  // namespace ringway
