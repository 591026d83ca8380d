// Text for a terminal or a log that may hold what others have chosen: names, paths, a file's contents.
#pragma once

#include <string>
#include <string_view>

namespace ringway {

// Control characters, which could end the line or command a terminal, become \x1b and the like. Lines end as they are.
[[nodiscard]] inline std::string plain_text(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string plain;
  plain.reserve(text.size());
  for (const char each : text) {
    const auto byte = static_cast<unsigned char>(each);
    if ((byte < 0x20 && each != '\n' && each != '\t') || byte == 0x7f) {
      plain += "\\x";
      plain += kDigits[byte >> 4U];
      plain += kDigits[byte & 0xfU];
    } else {
      plain += each;
    }
  }
  return plain;
}

}  // namespace ringway
