#include "base/result.hpp"

#include <cstring>

namespace ringway {

std::unexpected<Error> fail(std::string message) {
  return std::unexpected(Error{.code = 0, .message = std::move(message)});
}

std::unexpected<Error> fail_errno(int code, std::string message) {
  message += ": ";
  char buffer[128];
  message += strerror_r(code, buffer, sizeof buffer);  // the GNU form: returns the text
  return std::unexpected(Error{.code = code, .message = std::move(message)});
}

}  // namespace ringway
