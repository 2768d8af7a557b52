#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/error.h"
#include "text/utf8.h"

namespace thimble {
namespace {

TEST(StopMatcherTest, PassesEverythingWithoutStops) {
  StopMatcher matcher({});
  std::string out;
  EXPECT_FALSE(matcher.Feed("hello", &out));
  EXPECT_EQ(out, "hello");
  matcher.Flush(&out);
  EXPECT_EQ(out, "hello");
}

TEST(StopMatcherTest, CutsExactlyBeforeTheMatch) {
  StopMatcher matcher({"END"});
  std::string out;
  EXPECT_TRUE(matcher.Feed("hello END and more", &out));
  EXPECT_EQ(out, "hello ");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_TRUE(matcher.Feed("later", &out));
  matcher.Flush(&out);
  EXPECT_EQ(out, "hello ");
}

TEST(StopMatcherTest, HoldsBackWhatMayBecomeAStop) {
  StopMatcher matcher({"END"});
  std::string out;
  EXPECT_FALSE(matcher.Feed("aE", &out));
  EXPECT_EQ(out, "a");
  EXPECT_FALSE(matcher.Feed("N", &out));
  EXPECT_EQ(out, "a");
  EXPECT_FALSE(matcher.Feed("X", &out));
  EXPECT_EQ(out, "aENX");
  EXPECT_FALSE(matcher.Feed("EE", &out));
  EXPECT_EQ(out, "aENXE");
  EXPECT_TRUE(matcher.Feed("ND", &out));
  EXPECT_EQ(out, "aENXE");
}

TEST(StopMatcherTest, FlushReleasesWhatNeverBecameAStop) {
  StopMatcher matcher({"END"});
  std::string out;
  EXPECT_FALSE(matcher.Feed("aEN", &out));
  matcher.Flush(&out);
  EXPECT_EQ(out, "aEN");
  EXPECT_FALSE(matcher.Feed("D", &out)) << "starts afresh";
  EXPECT_EQ(out, "aEND");
}

TEST(StopMatcherTest, FallsBackToAShorterBeginning) {
  StopMatcher matcher({"aab"});
  std::string out;
  EXPECT_FALSE(matcher.Feed("aaa", &out));
  EXPECT_EQ(out, "a");
  EXPECT_TRUE(matcher.Feed("b", &out));
  EXPECT_EQ(out, "a");
}

TEST(StopMatcherTest, TakesTheMatchThatIsCompleteFirst) {
  StopMatcher matcher({"abcdef", "cd"});
  std::string out;
  EXPECT_TRUE(matcher.Feed("abcdef", &out));
  EXPECT_EQ(out, "ab");
}

TEST(StopMatcherTest, OfThoseCompleteTogetherTakesTheLongest) {
  StopMatcher matcher({"d", "bcd"});
  std::string out;
  EXPECT_TRUE(matcher.Feed("abcd", &out));
  EXPECT_EQ(out, "a");
}

TEST(StopMatcherTest, NeverCutsACharacter) {
  StopMatcher matcher({"é!", "\n\n"});
  std::string out;
  EXPECT_FALSE(matcher.Feed("è", &out));
  EXPECT_EQ(out, "è");
  EXPECT_FALSE(matcher.Feed("é", &out));
  EXPECT_EQ(out, "è");
  EXPECT_FALSE(matcher.Feed("?", &out));
  EXPECT_EQ(out, "èé?");
}

TEST(StopMatcherTest, RefusesAnEmptyStop) {
  try {
    StopMatcher matcher({"a", ""});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
  }
}

/// The definition: the match that ends first, the longest of those.
std::string CutAtFirstMatch(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopMatcherTest, IsTheSameHoweverTheTextIsCut) {
  std::mt19937 random(1);
  const auto random_text = [&random](size_t length) {
    std::string text;
    for (; length > 0; --length) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int trial = 0; trial < 5000; ++trial) {
    std::vector<std::string> stops;
    for (size_t n = random() % 4; n > 0; --n) stops.push_back(random_text(1 + random() % 6));
    const std::string text = random_text(random() % 20);
    const std::string expected = CutAtFirstMatch(text, stops);

    StopMatcher matcher(stops);
    std::string out;
    for (std::string_view rest = text; !rest.empty();) {
      const size_t length = 1 + random() % rest.size();
      matcher.Feed(rest.substr(0, length), &out);
      ASSERT_TRUE(expected.starts_with(out));
      rest.remove_prefix(length);
    }
    EXPECT_EQ(matcher.stopped(), expected.size() < text.size());
    matcher.Flush(&out);
    ASSERT_EQ(out, expected);
  }
}

}  // namespace
}  // namespace thimble
