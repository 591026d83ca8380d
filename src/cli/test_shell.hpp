// For tests of the program as it is typed in a shell.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

namespace ringway {

// The exit status (128 and the signal's number for who was killed), and stdout; stderr with it if the line says 2>&1.
inline std::pair<int, std::string> run_in_shell(const std::string& line) {
  FILE* const pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "no shell";
    return {};
  }
  std::string text;
  std::array<char, 4096> buffer;
  while (const std::size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text};
}

}  // namespace ringway
