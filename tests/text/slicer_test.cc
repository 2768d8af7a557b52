#include "text/slicer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace thimble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Slices = std::vector<std::string>;

Slices Slice(std::string_view text, SliceLimits limits = {}) {
  Slices slices;
  Slicer slicer(text, limits);
  std::string_view slice;
  while (slicer.Next(&slice)) slices.emplace_back(slice);
  return slices;
}

/// The official procedure, statement by statement. ASCII only.
Slices SliceOfficially(std::string_view text, SliceLimits limits) {
  const auto is_space = [](char c) {
    return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c < 32);
  };
  Slices slices;
  for (size_t at = 0; at < text.size(); at += limits.max_slice) {
    const std::string s(text.substr(at, limits.max_slice));
    bool space = is_space(s[0]);
    size_t run = 0;
    size_t start = 0;
    for (size_t i = 0; i < s.size(); ++i) {
      if (is_space(s[i]) != space) {
        run = 1;
        space = !space;
      } else if (++run > limits.max_run) {
        slices.push_back(s.substr(start, i - start));
        start = i;
        run = 1;
      }
    }
    slices.push_back(s.substr(start));
  }
  return slices;
}

TEST(SlicerTest, LeavesShortTextWhole) {
  EXPECT_THAT(Slice(""), IsEmpty());
  EXPECT_THAT(Slice("hello world"), ElementsAre("hello world"));
}

TEST(SlicerTest, CutsRuns) {
  EXPECT_THAT(Slice("abcdefghij", {.max_run = 4}), ElementsAre("abcd", "efgh", "ij"));
  EXPECT_THAT(Slice("abcdefgh", {.max_run = 8}), ElementsAre("abcdefgh"));
  EXPECT_THAT(Slice("ab cdefg hi", {.max_run = 4}), ElementsAre("ab cdef", "g hi"));
  EXPECT_THAT(Slice("a     b", {.max_run = 3}), ElementsAre("a   ", "  b"));
}

TEST(SlicerTest, CutsHardAfterCodePoints) {
  EXPECT_THAT(Slice("abcdefg", {.max_slice = 3}), ElementsAre("abc", "def", "g"));
  EXPECT_THAT(Slice("äöüß", {.max_slice = 2}), ElementsAre("äö", "üß"));
  EXPECT_THAT(Slice("abcdef", {.max_slice = 3, .max_run = 2}), ElementsAre("ab", "c", "de", "f"));
}

TEST(SlicerTest, CountsTheSpacesOfPython) {
  // U+001C is white space here, though it is none in the pattern; U+200B is none in either.
  EXPECT_THAT(Slice("a\x1c\x1c\x1c", {.max_run = 2}), ElementsAre("a\x1c\x1c", "\x1c"));
  EXPECT_THAT(Slice(" \u3000\u2028\u0085", {.max_run = 3}), ElementsAre(" \u3000\u2028", "\u0085"));
  EXPECT_THAT(Slice("a\u200b\u200bb", {.max_run = 3}), ElementsAre("a\u200b\u200b", "b"));
}

TEST(SlicerTest, FollowsTheOfficialProcedure) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text;
    for (size_t length = random() % 40; length > 0; --length) {
      text += random() % 3 == 0 ? ' ' : static_cast<char>('a' + length % 26);
    }
    const SliceLimits limits{.max_slice = 1 + random() % 12, .max_run = 1 + random() % 6};
    ASSERT_EQ(Slice(text, limits), SliceOfficially(text, limits)) << '"' << text << '"';
  }
}

TEST(SlicerTest, HasTheOfficialLimits) {
  EXPECT_EQ(Slice(std::string(60'000, 'x')).size(), 3u);
  EXPECT_EQ(Slice(std::string(25'000, 'x')).size(), 1u);
  std::string words;
  while (words.size() < 1'000'000) words += "word ";
  const Slices slices = Slice(words);
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0].size(), 400'000u);
  EXPECT_EQ(slices[2].size(), 200'000u);
}

}  // namespace
}  // namespace thimble
