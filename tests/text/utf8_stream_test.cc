#include "text/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "text/utf8.h"

namespace thimble {
namespace {

std::string DecodeAll(std::string_view bytes) {
  Utf8Stream stream;
  std::string text;
  stream.Feed(bytes, &text);
  stream.Flush(&text);
  return text;
}

TEST(Utf8StreamTest, HoldsBackUnfinishedCharacters) {
  Utf8Stream stream;
  std::string text;
  stream.Feed("a\xf0\x9f", &text);
  EXPECT_EQ(text, "a");
  EXPECT_TRUE(stream.pending());
  stream.Feed("\x8e", &text);
  EXPECT_EQ(text, "a");
  stream.Feed(
      "\x89"
      "b",
      &text);
  EXPECT_EQ(text, "a🎉b");
  EXPECT_FALSE(stream.pending());
}

TEST(Utf8StreamTest, FlushesTheTailAsOneReplacement) {
  Utf8Stream stream;
  std::string text;
  stream.Feed("\xf0\x9f\x8e", &text);
  stream.Flush(&text);
  EXPECT_EQ(text, "\ufffd");
  stream.Flush(&text);
  EXPECT_EQ(text, "\ufffd");
  stream.Feed("ok", &text);
  EXPECT_EQ(text, "\ufffdok");
}

TEST(Utf8StreamTest, ReplacesAtOnceWhatCannotBecomeACharacter) {
  Utf8Stream stream;
  std::string text;
  stream.Feed("\xe2\x82", &text);
  EXPECT_EQ(text, "");
  stream.Feed("A", &text);
  EXPECT_EQ(text,
            "\ufffd"
            "A");
  stream.Feed("\xff", &text);
  EXPECT_EQ(text,
            "\ufffd"
            "A\ufffd");
}

TEST(Utf8StreamTest, PassesARealReplacementCharacter) {
  Utf8Stream stream;
  std::string text;
  stream.Feed("x\ufffd", &text);
  EXPECT_EQ(text, "x\ufffd");
  EXPECT_FALSE(stream.pending());
}

/// Expectations are Python's: bytes.decode("utf-8", "replace").
TEST(Utf8StreamTest, ReplacesMaximalSubparts) {
  const std::pair<std::string, std::string> cases[] = {
      {"\xe2\x82"
       "A",
       "\ufffd"
       "A"},
      {"\xe2\xe2\x82\xac", "\ufffd€"},
      {"\xf0\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},  // overlong
      {"\xf0\x9f\x8e"
       "A",
       "\ufffd"
       "A"},
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},  // a surrogate
      {"\xc0\xaf", "\ufffd\ufffd"},
      {"\xc1\x81", "\ufffd\ufffd"},
      {"\xe0\x80\xaf", "\ufffd\ufffd\ufffd"},
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},  // above U+10FFFF
      {"\xf4\x8f\xbf\xbf", "\U0010ffff"},
      {"\xf5\x80", "\ufffd\ufffd"},
      {"\x80\xbf", "\ufffd\ufffd"},
      {"\xed\x9f\xbf\xee\x80\x80", "\ud7ff\ue000"},
      {"\xc2", "\ufffd"},
      {"\xf0\x90", "\ufffd"},
      {std::string("a\0b", 3), std::string("a\0b", 3)},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(DecodeAll(bytes), text);
}

TEST(Utf8StreamTest, IsTheSameHoweverItIsCut) {
  std::mt19937 random(1);
  const unsigned char kinds[] = {'a',  0x80, 0x9f, 0xa0, 0xbf, 0xc2,
                                 0xe0, 0xe2, 0xed, 0xf0, 0xf4, 0xff};
  for (int trial = 0; trial < 3000; ++trial) {
    std::string bytes;
    for (size_t length = random() % 12; length > 0; --length) {
      bytes += static_cast<char>(kinds[random() % std::size(kinds)]);
    }
    Utf8Stream stream;
    std::string text;
    for (std::string_view rest = bytes; !rest.empty();) {
      const size_t length = 1 + random() % rest.size();
      stream.Feed(rest.substr(0, length), &text);
      ASSERT_EQ(ValidUtf8Prefix(text), text.size());
      rest.remove_prefix(length);
    }
    stream.Flush(&text);
    ASSERT_EQ(text, DecodeAll(bytes));
  }
}

TEST(Utf8Test, FindsTheFirstInvalidByteAnywhere) {
  for (size_t at = 0; at < 40; ++at) {
    std::string text(40, 'x');
    text[at] = '\x80';
    EXPECT_EQ(ValidUtf8Prefix(text), at);
  }
}

TEST(Utf8Test, DecodesTheEndsOfEachLength) {
  const std::pair<const char*, uint32_t> cases[] = {
      {"\x7f", 0x7f},     {"\u0080", 0x80},        {"\u07ff", 0x7ff},       {"\u0800", 0x800},
      {"\uffff", 0xffff}, {"\U00010000", 0x10000}, {"\U0010ffff", 0x10ffff}};
  for (const auto& [text, value] : cases) {
    const CodePoint c = DecodeValidUtf8(text);
    EXPECT_EQ(c.value, value);
    EXPECT_EQ(c.length, std::string_view(text).size());
  }
}

}  // namespace
}  // namespace thimble
