// A session with somebody's back-end, for a person who waits for it: says that it waits, and at the end what to look at.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "base/result.hpp"
#include "driver/blk_driver.hpp"
#include "driver/net_driver.hpp"

namespace ringway {

// BlkDriver::create() and NetDriver::create(). `on_wait`, which may be empty, is called at most once, from another thread,
// with a sentence for a person, when there is no session after half a second.
//
// Errors: what create() says; but a path that is no socket is refused at once, and the common causes (nothing there, nobody
// listens, no permission, no answer) are told apart, each with what to do.
[[nodiscard]] Result<std::unique_ptr<BlkDriver>> connect_backend(const BlkDriverOptions& options,
                                                                 const std::function<void(std::string_view)>& on_wait);
[[nodiscard]] Result<std::unique_ptr<NetDriver>> connect_backend(const NetDriverOptions& options,
                                                                 const std::function<void(std::string_view)>& on_wait);

}  // namespace ringway
