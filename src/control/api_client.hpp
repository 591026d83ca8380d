// A small HTTP client for the local API: one request, one connection. For `ringway ctl` and tests. Blocking, any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/time.hpp"

namespace ringway {

struct ApiReply {
  unsigned status = 0;
  std::string body;
};

// `path` may be empty: the first place of api_places() where a daemon answers. `timeout`, at least 1 ms, is for the whole
// answer. Errors: no daemon at `path`, one that accepts no connections or is too slow, no permission, an answer that is no
// HTTP or breaks off.
[[nodiscard]] Result<ApiReply> api_request(const std::string& path, std::string_view method, std::string_view target,
                                           std::string_view body = {}, Duration timeout = Duration::seconds(30));

}  // namespace ringway
