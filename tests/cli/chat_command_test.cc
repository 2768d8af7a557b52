#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using testing::HasSubstr;
using testing::Not;

// A conversation with the embedded model, its lines given as a script.
Program::Result Chat(const std::string& lines, const std::vector<std::string>& options = {}) {
  std::vector<std::string> arguments = {"chat", "-n", "40", "-t", "1", "--effort", "off"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return Program::Run(arguments, lines);
}

// "..., N of them known, ..." of the last /stats.
size_t KnownTokens(const std::string& err) {
  const size_t end = err.rfind(" of them known");
  const size_t begin = err.rfind(", ", end) + 2;
  return std::stoul(err.substr(begin, end - begin));
}

TEST(ChatCommandTest, ConversesLineByLine) {
  const auto result = Chat("Who was the first man?\nAnd then?\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GE(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  // No markup, and nothing that steers a terminal.
  EXPECT_THAT(result.out, Not(HasSubstr("<|")));
  EXPECT_THAT(result.out, Not(HasSubstr("\033")));
  EXPECT_EQ(Chat("Who was the first man?\nAnd then?\n").out, result.out);
}

TEST(ChatCommandTest, ALaterTurnComputesOnlyWhatIsNew) {
  const auto result = Chat("Who was the first man?\n/stats\nAnd then?\n/stats\n");
  EXPECT_GT(KnownTokens(result.err), 40u) << result.err;
}

TEST(ChatCommandTest, RegeneratesAndTakesBackFromSnapshots) {
  const auto result =
      Chat("Who was he?\n/regenerate\n/stats\n/undo\n/stats\nWho was he?\n/stats\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("0 turns left"));
  EXPECT_THAT(result.err, HasSubstr("in 0 turns"));
  EXPECT_GT(KnownTokens(result.err), 5u);  // the whole prompt, again
}

TEST(ChatCommandTest, ASessionGoesOnWhereItWas) {
  TempDir dir;
  const std::string file = (dir / "session").string();
  const std::string first = "Who was the first man?\n";
  const std::string second = "And then?\n";
  const std::string whole = Chat(first + second).out;
  std::string parts = Chat(first, {"--session", file}).out;
  const auto resumed = Chat(second + "/stats\n", {"--session", file});
  EXPECT_EQ(parts + resumed.out, whole);
  EXPECT_GT(KnownTokens(resumed.err), 40u) << resumed.err;
  const auto other = Program::Run(
      {"chat", "-m", THIMBLE_SOURCE_DIR "/tests/fixtures/k3-small", "--session", file}, "x\n");
  EXPECT_NE(other.exit_code, 0);
}

TEST(ChatCommandTest, ADamagedSessionIsRefusedAndKept) {
  TempDir dir;
  const std::string file = (dir / "session").string();
  std::ofstream(file) << "nonsense";
  const auto result = Chat("Hi\n", {"--session", file});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr(file));
  std::string kept;
  std::getline(std::ifstream(file), kept);
  EXPECT_EQ(kept, "nonsense");
}

TEST(ChatCommandTest, DropsOldestTurnsWholeWhenFull) {
  std::string lines;
  for (int i = 0; i < 8; ++i) lines += "Tell me of the sea and of the land, and of the king.\n";
  const auto result = Chat(lines + "/stats\n", {"-c", "220"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the context was full: the oldest"));
  EXPECT_THAT(result.err, HasSubstr(" of 220 tokens in "));
}

TEST(ChatCommandTest, SaysWhatIsWrongAndGoesOn) {
  std::string words;
  for (int i = 0; i < 400; ++i) words += "word ";
  const auto result = Chat(
      "/dance\n/undo\n/effort medium\n/load nowhere\n" + words + "\n/help\n/system Be brief.\nHi\n",
      {"-c", "200"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"no command /dance", "nothing to take back", "medium", "nowhere",
                           "too long", "/regenerate"}) {
    EXPECT_THAT(result.err, HasSubstr(part));
  }
  EXPECT_FALSE(result.out.empty());
}

TEST(ChatCommandTest, TakesSeveralLinesAsOneMessage) {
  const auto quoted = Chat("\"\"\"\none\ntwo\n\"\"\"\n/stats\n");
  const auto continued = Chat("one\\\ntwo\n/stats\n");
  EXPECT_EQ(quoted.out, continued.out);
  EXPECT_THAT(quoted.err, HasSubstr("in 1 turns"));
}

}  // namespace
}  // namespace thimble
