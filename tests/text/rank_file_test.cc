#include "text/rank_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/small_ranks.h"

namespace thimble {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

/// What the parser says about a file of the 256 bytes and then `tail`, from line 257 on.
std::string MessageFor(const std::string& tail) {
  try {
    ParseRankFile(SmallRankFile({}) + tail, "ranks");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    return error.what();
  }
  ADD_FAILURE() << "accepted " << tail;
  return "";
}

TEST(RankFileTest, ReadsTokensInOrder) {
  const TokenTable table = ParseRankFile(SmallRankFile({"ab", "abc", "abcd"}), "ranks");
  ASSERT_EQ(table.size(), 259u);
  EXPECT_EQ(table[0], std::string_view("\0", 1));
  EXPECT_EQ(table[258], "abcd");
  EXPECT_EQ(table.Find("abc"), 257u);
  EXPECT_EQ(table.Find("abcde"), std::nullopt);
}

TEST(RankFileTest, AcceptsOtherLineEnds) {
  std::string crlf;
  for (const char c : SmallRankFile({"ab"}))
    crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(ParseRankFile(crlf, "ranks").size(), 257u);

  std::string unfinished = SmallRankFile({"ab"});
  unfinished.pop_back();
  EXPECT_EQ(ParseRankFile(unfinished, "ranks").Find("ab"), 256u);

  EXPECT_EQ(ParseRankFile(SmallRankFile({"ab"}) + "\n\r\n", "ranks").size(), 257u);
}

TEST(RankFileTest, RefusesMalformedLines) {
  EXPECT_THAT(MessageFor("YWI=\n"),
              StartsWith("ranks:257: expected \"base64 rank\", found \"YWI=\""));
  EXPECT_THAT(MessageFor("YWI=\t256\n"), HasSubstr("expected \"base64 rank\""));
  EXPECT_THAT(MessageFor(" 256\n"), HasSubstr("expected a token, found none"));
  EXPECT_THAT(MessageFor("YWI= 256\nYWI 257\n"), StartsWith("ranks:258: expected base64"));
  for (const char* bad : {"YWI", "YW=I", "Y===", "====", "YW I=", "YWJ=", "Y_I=", "YWI=YWI="}) {
    EXPECT_THAT(MessageFor(std::string(bad) + " 256\n"), StartsWith("ranks:257: expected")) << bad;
  }
}

TEST(RankFileTest, RefusesWrongRanks) {
  for (const char* bad : {"257", "255", "", "-1", "+256", "0256", "256 ", " 256", "256x", "0x100",
                          "4294967552", "99999999999999999999"}) {
    EXPECT_THAT(MessageFor("YWI= " + std::string(bad)),
                StartsWith("ranks:257: expected rank 256, found \"" + std::string(bad) + '"'));
  }
}

TEST(RankFileTest, RefusesATokenTwice) {
  EXPECT_THAT(MessageFor("YQ== 256\n"), HasSubstr("found the one of rank 97 again"));
}

TEST(RankFileTest, RefusesGiantTokens) {
  const std::string largest(kMaxTokenBytes, 'x');
  EXPECT_EQ(ParseRankFile(SmallRankFile({largest}), "ranks").longest(), kMaxTokenBytes);
  EXPECT_THAT(MessageFor(EncodeBase64(largest + 'x') + " 256"),
              HasSubstr("at most 1024 bytes, found 1025"));
}

TEST(RankFileTest, RefusesAFileWithoutAllBytes) {
  for (const std::string file : {"", "AA== 0\n", "\n\n"}) {
    EXPECT_THROW(ParseRankFile(file, "ranks"), Error);
  }
  const std::string all = SmallRankFile({});
  const std::string cut = all.substr(0, all.rfind("/w=="));
  try {
    ParseRankFile(cut, "ranks");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("found none for byte 255"));
  }
}

TEST(RankFileTest, SaysWhereTheFileIsCut) {
  EXPECT_THAT(
      MessageFor("YWI= 256\nYWJj 2"),
      HasSubstr("ranks:258: expected rank 257, found \"2\"; the file ends within this line"));
  EXPECT_THAT(MessageFor("YWI= 256\nYW"), HasSubstr("the file ends within this line"));
}

TEST(RankFileTest, ShowsOnlyPrintableText) {
  EXPECT_THAT(MessageFor("\x01\xff" + std::string(100, 'x')),
              HasSubstr("\"??" + std::string(38, 'x') + "...\""));
}

}  // namespace
}  // namespace thimble
