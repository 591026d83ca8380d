// Result<T>: how a fault of the environment travels (a missing file, a full disk, a kernel that refuses).
//
// Faults of a guest or a front-end have their own small enums next to the code that finds them (ring/, request/,
// vhost_user/), since they are counted by reason; faults of ours abort (base/check.hpp). An Error carries a sentence for a
// person, so it is built on control paths only, never for a request.
#pragma once

#include <expected>
#include <string>
#include <utility>

namespace ringway {

struct Error {
  int code = 0;         // errno, or 0 where no system call is to blame
  std::string message;  // what failed, on what, and what to do about it; no trailing full stop or newline
};

template <typename T = void>
using Result = std::expected<T, Error>;

// A failure whose text is complete as it stands.
[[nodiscard]] std::unexpected<Error> fail(std::string message);
// A failure of a system call: appends ": <strerror(code)>".
[[nodiscard]] std::unexpected<Error> fail_errno(int code, std::string message);

}  // namespace ringway

// Returns the error of `expression` from the calling function, or goes on.
#define RW_TRY(expression)                                               \
  do {                                                                   \
    if (auto rw_try_result = (expression); !rw_try_result.has_value()) { \
      return std::unexpected(std::move(rw_try_result).error());          \
    }                                                                    \
  } while (false)

#define RW_TRY_CONCAT_INNER(a, b) a##b
#define RW_TRY_CONCAT(a, b) RW_TRY_CONCAT_INNER(a, b)
// RW_TRY_ASSIGN(auto file, open_file(path)): declares `file`, or returns the error.
#define RW_TRY_ASSIGN(declaration, expression)                                   \
  auto RW_TRY_CONCAT(rw_try_, __LINE__) = (expression);                          \
  if (!RW_TRY_CONCAT(rw_try_, __LINE__).has_value()) {                           \
    return std::unexpected(std::move(RW_TRY_CONCAT(rw_try_, __LINE__)).error()); \
  }                                                                              \
  declaration = std::move(*RW_TRY_CONCAT(rw_try_, __LINE__))
