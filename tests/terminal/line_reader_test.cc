#include "terminal/line_reader.h"

#include <gtest/gtest.h>

namespace thimble {
namespace {

TEST(PastedTextTest, LineEndsBecomeNewlinesAndNoneIsLeftAtTheEnd) {
  EXPECT_EQ(PastedText(L"one\rtwo\r\nthree\nfour\r\n\n"), L"one\ntwo\nthree\nfour");
  EXPECT_EQ(PastedText(L"\r\n"), L"");
  EXPECT_EQ(PastedText(L""), L"");
}

TEST(PastedTextTest, NothingInItSteersTheTerminal) {
  EXPECT_EQ(PastedText(L"a\033[2J\tb\x07\x7f\x9bZ \u00e9\u6f22"), L"a[2J\tbZ \u00e9\u6f22");
}

}  // namespace
}  // namespace thimble
