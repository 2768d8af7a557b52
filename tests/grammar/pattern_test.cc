#include "grammar/pattern.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

#include "grammar/byte_automaton.h"
#include "grammar/string_formats.h"

namespace thimble {
namespace {

CharAutomaton CompileFor(const std::string& pattern, bool whole = false) {
  size_t work = 5'000'000;
  return CompilePattern(pattern, whole, &work);
}

TEST(PatternTest, AgreesWithTheStandardLibrary) {
  const char* const patterns[] = {
      "abc",    "^abc$",   "a|b",         "^(a|b)*$",       "^a{2,3}$",  "^a{2,}b?$",
      "a.c",    "^[^a]+$", "^[a-c]+\\d$", "(ab)+c|^$",      "\\w\\s\\w", "^(?:a|ab)(?:c|bcd)$",
      "^$",     "$",       "^",           "b$|^c",          "[\\]a-]",   "a+?b",
      "^\\S+$", "(^a|b$)", "x{0}y",       "^(a(b(c)?)?)?$", "[\\d.]{2}"};
  std::mt19937 random(1);
  for (const char* pattern : patterns) {
    const CharAutomaton automaton = CompileFor(pattern);
    const std::regex expected(pattern);
    for (int i = 0; i < 400; ++i) {
      std::string text;
      const size_t length = random() % 6;
      for (size_t k = 0; k < length; ++k) text += "abcd1. -]y"[random() % 10];
      EXPECT_EQ(automaton.Takes(text), std::regex_search(text, expected)) << pattern << " " << text;
    }
  }
}

TEST(PatternTest, KnowsCharactersBeyondAscii) {
  EXPECT_TRUE(CompileFor("^.$").Takes("\U0001F389"));
  EXPECT_TRUE(CompileFor("^[\u00e0-\u00ff]+$").Takes("éè"));
  EXPECT_TRUE(CompileFor("^\\p{Lu}\\p{L}*$").Takes("Éa中"));
  EXPECT_FALSE(CompileFor("^\\p{Lu}\\p{L}*$").Takes("éa"));
  EXPECT_TRUE(CompileFor("^\\u{1F389}\\ud83c\\udf89\\x41$").Takes("\U0001F389\U0001F389A"));
  EXPECT_FALSE(CompileFor("^[^\\u0000-\\uffff]$").Takes("a"));
}

TEST(PatternTest, LooksAheadAtTheBeginning) {
  const CharAutomaton automaton = CompileFor("^(?=.*\\d)(?!.*x)[a-z0-9]{3,5}$");
  EXPECT_TRUE(automaton.Takes("ab1"));
  EXPECT_FALSE(automaton.Takes("abc"));
  EXPECT_FALSE(automaton.Takes("ax1"));
}

TEST(PatternTest, SaysWhatItCannotTake) {
  const auto refuses = [](const std::string& pattern, bool is_invalid) {
    try {
      CompileFor(pattern);
      ADD_FAILURE() << pattern;
    } catch (const PatternError& error) {
      EXPECT_EQ(error.is_invalid(), is_invalid) << pattern << ": " << error.what();
    }
  };
  for (const char* pattern : {"(", ")", "[a", "*a", "a**b(", "a{3,2}", "[b-a]", "\\x4", "a\\"}) {
    refuses(pattern, true);
  }
  for (const char* pattern : {"a\\b", "(a)\\1", "(?<=a)b", "b(?=a)", "(?i)a", "\\p{Greek}",
                              "(a|b)*a(a|b){30}", "((((a{9}){9}){9}){9}){9}"}) {
    refuses(pattern, false);
  }
  refuses(std::string(500, '(') + std::string(500, ')'), false);
}

// Each text of a format, spelled at random, is one.
TEST(PatternTest, Formats) {
  const auto takes = [](const char* format, const std::vector<std::string>& good,
                        const std::vector<std::string>& bad) {
    const auto pattern = FindFormat(format);
    ASSERT_TRUE(pattern) << format;
    const CharAutomaton automaton = CompileFor(std::string(*pattern), true);
    for (const std::string& text : good)
      EXPECT_TRUE(automaton.Takes(text)) << format << " " << text;
    for (const std::string& text : bad)
      EXPECT_FALSE(automaton.Takes(text)) << format << " " << text;
  };
  takes("date", {"2024-01-31", "1999-11-30"}, {"2024-02-30", "2024-13-01", "2024-1-1", ""});
  takes("time", {"23:59:59Z", "00:00:00.5+01:30"}, {"24:00:00Z", "1:00:00Z", "10:00:00"});
  takes("date-time", {"2024-01-31T10:00:00Z"}, {"2024-01-31 10:00:00Z", "2024-01-31"});
  takes("email", {"a@b.co", "first.last@sub.example.com"}, {"a@b", "@b.co", "a b@c.de", "a@-b.co"});
  takes("hostname", {"localhost", "a-b.example.com"}, {"-a", "a..b", "a_b"});
  takes("ipv4", {"0.0.0.0", "255.249.199.99"}, {"256.1.1.1", "1.1.1", "01.1.1.1"});
  takes("ipv6", {"::", "::1", "1::", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8"},
        {":", "1:2:3", "1:2:3:4:5:6:7:8:9", "g::"});
  takes("uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567e89b12d3a456426614174000"});
  takes("uri", {"https://example.com/a?b=c#d", "mailto:a@b.co", "urn:isbn:1"},
        {"example.com", ":a", "a b:c"});
  takes("duration", {"P1D", "PT5M", "P1Y2M3D", "P2W"}, {"P", "1D", "PT"});
  EXPECT_FALSE(FindFormat("isbn"));
}

// Spelled as JSON a text keeps its meaning, and only what must be escaped is.
TEST(PatternTest, SpellsJson) {
  const ByteAutomaton json = ByteAutomaton::Of(CompileFor("^[^a]*$"), TextSpelling::kJson);
  const auto takes = [&](const std::string& text) {
    uint32_t state = 0;
    for (const char c : text) {
      if (state != ByteAutomaton::kDead) state = json.Step(state, static_cast<uint8_t>(c));
    }
    return state != ByteAutomaton::kDead && json.state(state).accepts;
  };
  for (const char* text : {"\"\"", R"("\"\\\n\u0001\u001f/")", "\"\u00e9\u4e2d\U0001F389\""}) {
    EXPECT_TRUE(takes(text)) << text;
  }
  for (const char* text : {"\"a\"", R"("\u0061")", R"("\/")", "\"\n\"", "\"\xed\xa0\x80\"",
                           "\"\xc0\x80\"", "\"\xf4\x90\x80\x80\"", "\""}) {
    EXPECT_FALSE(takes(text)) << text;
  }
}

}  // namespace
}  // namespace thimble
