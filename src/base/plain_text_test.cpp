#include "base/plain_text.hpp"

#include <gtest/gtest.h>

namespace ringway {
namespace {

TEST(PlainText, ControlCharactersReachNoTerminal) {
  EXPECT_EQ(plain_text("a\x1b[31m\r\x7f"), "a\\x1b[31m\\x0d\\x7f");
  EXPECT_EQ(plain_text(std::string_view("\0z", 2)), "\\x00z");
  EXPECT_EQ(plain_text("two\nlines, ein Ä\tund mehr"), "two\nlines, ein Ä\tund mehr");
}

}  // namespace
}  // namespace ringway
