#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace thimble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Cut(std::string_view text) {
  std::vector<std::string> pieces;
  PieceCutter cutter(text);
  std::string_view piece;
  while (cutter.Next(&piece)) pieces.emplace_back(piece);
  return pieces;
}

TEST(PieceCutterTest, CutsNothingFromNothing) { EXPECT_THAT(Cut(""), IsEmpty()); }

TEST(PieceCutterTest, WordsTakeOnePrecedingCharacter) {
  EXPECT_THAT(Cut("hello world"), ElementsAre("hello", " world"));
  EXPECT_THAT(Cut("(hello)"), ElementsAre("(hello", ")"));
  EXPECT_THAT(Cut("((hello"), ElementsAre("((", "hello"));
  EXPECT_THAT(Cut("\thello"), ElementsAre("\thello"));
  EXPECT_THAT(Cut("\nhello"), ElementsAre("\n", "hello"));
  EXPECT_THAT(Cut("1hello"), ElementsAre("1", "hello"));
  EXPECT_THAT(Cut("🎉hello"), ElementsAre("🎉hello"));
  EXPECT_THAT(Cut("\u00a0hello"), ElementsAre("\u00a0hello"));
}

TEST(PieceCutterTest, WordsEndWhereUpperCaseFollowsLower) {
  EXPECT_THAT(Cut("helloWorld"), ElementsAre("hello", "World"));
  EXPECT_THAT(Cut("HELLOworld"), ElementsAre("HELLOworld"));
  EXPECT_THAT(Cut("HELLO"), ElementsAre("HELLO"));
  EXPECT_THAT(Cut("HELLO WORLD"), ElementsAre("HELLO", " WORLD"));
  EXPECT_THAT(Cut("ǅabc"), ElementsAre("ǅabc")) << "title case counts as upper";
}

/// Lm, Lo and marks are upper and lower at once, so the first core gives back to the last of them.
TEST(PieceCutterTest, TheUpperRunGivesBack) {
  EXPECT_THAT(Cut("AʰB"), ElementsAre("Aʰ", "B"));
  EXPECT_THAT(Cut("AʰBʰC"), ElementsAre("AʰBʰ", "C"));
  EXPECT_THAT(Cut("AʰBc"), ElementsAre("AʰBc"));
  EXPECT_THAT(Cut("ABאC"), ElementsAre("ABא", "C"));
}

TEST(PieceCutterTest, MarksAreLetters) {
  EXPECT_THAT(Cut("e\u0301a"), ElementsAre("e\u0301a"));
  EXPECT_THAT(Cut("\u0301abc"), ElementsAre("\u0301abc"));
  EXPECT_THAT(Cut("\u0301"), ElementsAre("\u0301"));
  EXPECT_THAT(Cut("\u0301ABC"), ElementsAre("\u0301", "ABC")) << "as a prefix the core would fail";
  EXPECT_THAT(Cut("!\u0301"), ElementsAre("!\u0301"));
  EXPECT_THAT(Cut("!!\u0301a"), ElementsAre("!!\u0301", "a")) << "a mark is not a letter here";
}

TEST(PieceCutterTest, WordsTakeAContraction) {
  for (const char* tail : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "'Ll", "'ſ"}) {
    EXPECT_THAT(Cut(std::string("it") + tail + "x"), ElementsAre(std::string("it") + tail, "x"));
    EXPECT_THAT(Cut(std::string("IT") + tail), ElementsAre(std::string("IT") + tail));
  }
  EXPECT_THAT(Cut("it'x"), ElementsAre("it", "'x"));
  EXPECT_THAT(Cut("it're"), ElementsAre("it're"));
  EXPECT_THAT(Cut("it'r"), ElementsAre("it", "'r"));
  EXPECT_THAT(Cut("it'l"), ElementsAre("it", "'l"));
  EXPECT_THAT(Cut("it'"), ElementsAre("it", "'"));
  EXPECT_THAT(Cut("I'd've"), ElementsAre("I'd", "'ve"));
  EXPECT_THAT(Cut("don’t"), ElementsAre("don", "’t")) << "only the ASCII apostrophe";
  EXPECT_THAT(Cut("1's"), ElementsAre("1", "'s"));
  EXPECT_THAT(Cut("it'Ż"), ElementsAre("it", "'Ż")) << "shares its first byte with U+017F";
}

TEST(PieceCutterTest, HanIsAPieceOfItsOwn) {
  EXPECT_THAT(Cut("abc漢字def"), ElementsAre("abc", "漢字", "def"));
  EXPECT_THAT(Cut(" 漢字"), ElementsAre(" ", "漢字"));
  EXPECT_THAT(Cut("漢字 a"), ElementsAre("漢字", " a"));
  EXPECT_THAT(Cut("々〇〡⺀⼀"), ElementsAre("々〇〡⺀⼀"));
  EXPECT_THAT(Cut("漢ー"), ElementsAre("漢", "ー")) << "script extensions do not count";
  EXPECT_THAT(Cut("ひ漢"), ElementsAre("ひ", "漢"));
  EXPECT_THAT(Cut("!漢"), ElementsAre("!", "漢"));
  EXPECT_THAT(Cut("!⺀x"), ElementsAre("!⺀", "x")) << "a radical is a symbol after a symbol";
  EXPECT_THAT(Cut("12〇"), ElementsAre("12〇")) << "and a number after a number";
  EXPECT_THAT(Cut("𠀀𠀁a"), ElementsAre("𠀀𠀁", "a"));
}

TEST(PieceCutterTest, NumbersComeInThrees) {
  EXPECT_THAT(Cut("1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(Cut("1٢३4"), ElementsAre("1٢३", "4"));
  EXPECT_THAT(Cut("①②③④"), ElementsAre("①②③", "④"));
  EXPECT_THAT(Cut(" 12"), ElementsAre(" ", "12"));
  EXPECT_THAT(Cut("3.14"), ElementsAre("3", ".", "14"));
}

TEST(PieceCutterTest, SymbolsTakeOneSpaceBeforeAndNewlinesAfter) {
  EXPECT_THAT(Cut(" !!\r\n\n x"), ElementsAre(" !!\r\n\n", " x"));
  EXPECT_THAT(Cut("  !!"), ElementsAre(" ", " !!"));
  EXPECT_THAT(Cut("\t!!"), ElementsAre("\t", "!!"));
  EXPECT_THAT(Cut("!\n/"), ElementsAre("!\n", "/"));
  EXPECT_THAT(Cut("\u200b\ufeff\u001c"), ElementsAre("\u200b\ufeff\u001c")) << "Cf and Cc";
  EXPECT_THAT(Cut("\U000e0fff"), ElementsAre("\U000e0fff")) << "unassigned";
}

TEST(PieceCutterTest, SpaceEndsAfterItsLastNewline) {
  EXPECT_THAT(Cut("  \n \n  y"), ElementsAre("  \n \n", " ", " y"));
  EXPECT_THAT(Cut("\n"), ElementsAre("\n"));
  EXPECT_THAT(Cut("\r\n\r\n  x"), ElementsAre("\r\n\r\n", " ", " x"));
  EXPECT_THAT(Cut("\t\t\n"), ElementsAre("\t\t\n"));
  EXPECT_THAT(Cut(" \u0085 x"), ElementsAre(" \u0085", " x")) << "U+0085 is no newline here";
}

TEST(PieceCutterTest, SpaceLeavesItsLastCharacterToTheNextPiece) {
  EXPECT_THAT(Cut("   x"), ElementsAre("  ", " x"));
  EXPECT_THAT(Cut("   1"), ElementsAre("  ", " ", "1"));
  EXPECT_THAT(Cut("a   "), ElementsAre("a", "   "));
  EXPECT_THAT(Cut("a \u3000\u3000b"), ElementsAre("a", " \u3000", "\u3000b"));
}

TEST(PieceCutterTest, LooksOnlyAtItsText) {
  // What lies behind the text would change each last piece.
  const std::string text = "it're  x";
  EXPECT_THAT(Cut(std::string_view(text).substr(0, 4)), ElementsAre("it", "'r"));
  EXPECT_THAT(Cut(std::string_view(text).substr(5, 2)), ElementsAre("  "));
}

TEST(CharClassTest, KnowsTheClassesOfSomeCharacters) {
  const CharClassTable& classes = CharClassTable::Get();
  EXPECT_EQ(classes['A'], kLetter | kUpper);
  EXPECT_EQ(classes['z'], kLetter | kLower);
  EXPECT_EQ(classes[0x5d0], kLetter | kUpper | kLower);
  EXPECT_EQ(classes[0x301], kOther | kUpper | kLower);
  EXPECT_EQ(classes['7'], kNumber);
  EXPECT_EQ(classes['\n'], kSpace | kNewline);
  EXPECT_EQ(classes[0x0b], kSpace);
  EXPECT_EQ(classes[0x1c], kOther);
  EXPECT_EQ(classes[0x4e00], kHan | kLetter);
  EXPECT_EQ(classes[0x3007], kHan | kNumber);
  EXPECT_EQ(classes[0x2e80], kHan | kOther);
  EXPECT_EQ(classes[0x30fc], kLetter | kUpper | kLower);
  EXPECT_EQ(classes[0x33479], kHan | kLetter) << "newer than some versions of utf8proc";
  EXPECT_EQ(classes[0x10ffff], kOther);
}

TEST(CharClassTest, ThereAre25WhiteSpaceCharacters) {
  int spaces = 0;
  for (uint32_t c = 0; c <= 0x10ffff; ++c) {
    const CharClassSet set = CharClassTable::Get()[c];
    spaces += (set & kSpace) != 0;
    const int basic = ((set & kSpace) != 0) + ((set & kLetter) != 0) + ((set & kNumber) != 0) +
                      ((set & kOther) != 0);
    ASSERT_EQ(basic, 1) << c;
  }
  EXPECT_EQ(spaces, 25);
}

}  // namespace
}  // namespace thimble
