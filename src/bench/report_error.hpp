// How a bench or a check that could not do its work says so. Private to the benches.
#pragma once

#include <iostream>
#include <ostream>
#include <string>

#include <nlohmann/json.hpp>

namespace ringway {

// To `out` as an object for programs, else as a line to the standard error, as the command line says all its errors.
inline void report_error(const std::string& message, bool json, std::ostream& out) {
  if (json) {
    out << nlohmann::json{{"error", message}}.dump() << '\n';
  } else {
    std::cerr << "ringway: " << message << '\n';
  }
}

}  // namespace ringway
