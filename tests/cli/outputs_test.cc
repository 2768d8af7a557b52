#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "cli/program.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Commands of a shell, in a folder of their own; $T is the program.
class OutputsTest : public testing::Test {
 protected:
  Program::Result Shell(const std::string& script) {
    const std::string place = "'" + dir_.path().string() + "'";
    const std::string command = "cd " + place +
                                " && export T='" THIMBLE_BINARY "' TMPDIR=" + place +
                                "/rescue && { " + script + "\n} >out 2>err";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            ReadBytes(dir_ / "out"), ReadBytes(dir_ / "err")};
  }
  bool MakeNullDevice() const {
    if (::mknod((dir_ / "null").c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) return false;
    return std::system(("true 2>/dev/null >'" + (dir_ / "null").string() + "'").c_str()) == 0;
  }
  std::vector<std::string> Leftovers() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.find(".partial") != std::string::npos || name.starts_with("."))
        names.push_back(name);
    }
    return names;
  }

  TempDir dir_;
};

TEST_F(OutputsTest, DevicesPipesAndLinksStayWhatTheyAre) {
  if (!MakeNullDevice()) GTEST_SKIP() << "may not make and open a device: needs root";
  const auto run = Shell(
      "ln -s null link; ln -s target named; mkfifo pipe; cat pipe >piped & "
      "for f in null link pipe named; do $T run -p In -n 1 -t 1 --stats $f || exit; done; wait");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(std::filesystem::is_character_file(dir_ / "null"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "link"));
  EXPECT_TRUE(std::filesystem::is_fifo(dir_ / "pipe"));
  EXPECT_THAT(ReadBytes(dir_ / "piped"), HasSubstr("\"generated_tokens\": 1"));
  EXPECT_THAT(ReadBytes(dir_ / "target"), HasSubstr("\"generated_tokens\": 1"));
  const auto chat = Shell(
      "printf 'Hi\\n/save null\\n/save link\\n/save pipe\\n/stats\\n' | "
      "$T chat -n 3 -t 1 --effort off");
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_THAT(chat.err, AllOf(HasSubstr("a device"), HasSubstr("a pipe"), HasSubstr("in 1 turns")));
  EXPECT_TRUE(std::filesystem::is_character_file(dir_ / "null"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "link"));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(OutputsTest, StatsMayGoToADescriptor) {
  const auto run = Shell("$T run -p In -n 1 -t 1 --out-ids --stats /dev/stdout");
  EXPECT_THAT(run.out, AllOf(Not(testing::StartsWith("{")), HasSubstr("\"generated_tokens\": 1")));
  EXPECT_THAT(Shell("$T run -p In -n 1 -t 1 --stats /dev/fd/5 5>five && cat five").out,
              HasSubstr("\"generated_tokens\": 1"));
}

TEST_F(OutputsTest, WhatCannotBeWrittenIsKnownBeforeTheModelIsOpened) {
  for (const std::string output : {"--stats", "--logits", "--session"}) {
    for (const std::string place : {"missing/file", ".", "out/file"}) {
      const auto result = Shell("$T run -m no-such-model -p In " + output + " " + place);
      EXPECT_THAT(result.err, AllOf(HasSubstr("cannot write " + place), Not(HasSubstr("model"))));
      EXPECT_TRUE(result.exit_code == 1 || result.exit_code == 2) << result.exit_code;
    }
  }
  EXPECT_THAT(Shell("$T chat -m no-such-model --session missing/file").err,
              HasSubstr("cannot write missing/file"));
  EXPECT_THAT(Shell("$T run -p In --stats x --logits ./x").err, HasSubstr("two outputs name"));
}

TEST_F(OutputsTest, NoCommandEndsTheConversation) {
  const auto result = Shell(
      "mkdir folder; mkfifo pipe; printf 'Hi\\n/save missing/x\\n/save folder\\n/save\\n/load\\n"
      "/load folder\\n/load missing\\n/effort\\n/effort medium\\n/effort off off\\n/undo\\n/undo\\n"
      "/regenerate\\n/continue\\n/dance\\n/help me\\n/save out/x\\nHi\\n/save  saved  "
      "\\n/stats\\n' "
      "| $T chat -n 3 -t 1 --effort off");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("missing/x: No such file"), HasSubstr("a directory"),
                                HasSubstr("/save needs"), HasSubstr("/load needs"),
                                HasSubstr("/effort needs"), HasSubstr("nothing to take back"),
                                HasSubstr("no answer to continue"), HasSubstr("no command /dance"),
                                HasSubstr("1 turns saved in saved"), HasSubstr("in 1 turns")));
  EXPECT_TRUE(std::filesystem::is_regular_file(dir_ / "saved"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "folder"));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(OutputsTest, AConversationWhoseFolderVanishesIsRescued) {
  const auto result = Shell(
      "mkdir folder rescue; { echo One; sleep 0.1; while [ ! -e folder/s ]; do sleep 0.05; done; "
      "rm -r folder; echo Two; } | $T chat -n 3 -t 1 --effort off --session folder/s");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("warning: the conversation is not saved"),
                                HasSubstr("It was saved as")));
  const auto resumed =
      Shell("echo /stats | $T chat -t 1 --effort off --session rescue/s.rescued-1");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("> One"), HasSubstr("> Two"), HasSubstr("in 2 turns")));
}

TEST_F(OutputsTest, ResultsOfARunAreRescuedToo) {
  const auto result = Shell(
      "mkdir folder rescue; $T run -p In -n 1900 -t 1 --out-ids --stats folder/stats "
      "--session folder/session & while [ ! -s out ]; do sleep 0.02; done; rm -r folder; "
      "kill -TERM $!; wait $!");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  for (const std::string name : {"stats", "session"}) {
    EXPECT_TRUE(std::filesystem::is_regular_file(dir_ / ("rescue/" + name + ".rescued-1"))) << name;
    EXPECT_THAT(result.err, HasSubstr("cannot write folder/" + name));
  }
}

TEST_F(OutputsTest, StandardOutputThatTakesNothingIsNoticed) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const std::string config = THIMBLE_SOURCE_DIR "/tests/fixtures/k3-small";
  for (const std::string command :
       {"echo Hi | $T chat -n 9 -t 1 --effort off", "$T run -p In -n 5 -t 1", "$T inspect",
        "$T inspect --json", "echo Hi | $T tokenize", "echo 1 | $T detokenize",
        "$T plan --arch kimi-k3", "$T plan --arch kimi-k3 --json", "$T --help", "$T run --help",
        "$T --version", "$T verify", "$T eval -t 1 -c 16 -f text"}) {
    const auto result = Shell("echo In the beginning >text; " + command + " >/dev/full");
    EXPECT_EQ(result.exit_code, 1) << command << result.err;
    EXPECT_THAT(result.err, HasSubstr("cannot write to standard output: No space left")) << command;
  }
}

TEST_F(OutputsTest, AReaderThatHasSeenEnoughIsNoFailure) {
  const auto result = Shell(
      "{ $T run -p In -n 100000 -c 2000 -t 1 --session s; echo $? >code; } | head -c 20; cat code");
  EXPECT_THAT(result.out, HasSubstr("141"));
  EXPECT_THAT(result.err, AllOf(Not(HasSubstr("thimble:")), HasSubstr("session of")));
  EXPECT_TRUE(std::filesystem::is_regular_file(dir_ / "s"));
}

TEST_F(OutputsTest, ClosedDescriptorsAreReplacedByNothing) {
  const auto result = Shell("$T chat -t 1 --effort off <&-; echo code $?");
  EXPECT_EQ(result.out, "code 0\n") << result.err;
  const std::string text = Shell("$T run -p In -n 5 -t 1").out;
  for (const std::string closed : {"<&-", "2>&-", "<&- 2>&-", "2>/dev/full"}) {
    EXPECT_EQ(Shell("$T run -p In -n 5 -t 1 --stats stats " + closed).out, text) << closed;
  }
  EXPECT_EQ(Shell("$T run -p In -n 5 -t 1 --stats stats >&-").exit_code, 0);
  EXPECT_THAT(ReadBytes(dir_ / "stats"), testing::StartsWith("{"));
}

TEST_F(OutputsTest, StandardInputThatCannotBeReadIsNoticed) {
  for (const std::string command : {"run -f -", "tokenize", "chat --effort off", "eval -f -"}) {
    const auto result = Shell("$T " + command + " <.");
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_THAT(result.err, HasSubstr("cannot read standard input: Is a directory")) << command;
  }
}

// A lost connection: the kernel says so, then the shell.
TEST_F(OutputsTest, AHangUpSavesTheConversation) {
  const auto session = (dir_ / "session").string();
  for (const int signal : {SIGHUP, SIGTERM}) {
    Program program({"run", "-p", "In", "-n", "1900", "-t", "1", "--session", session});
    while (program.OutSoFar().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    program.Signal(signal);
    if (signal == SIGHUP) program.Signal(signal);
    const auto result = program.Wait();
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_THAT(result.err, HasSubstr("saved in " + session));
    std::filesystem::remove(session);
  }
  Program chat({"chat", "-n", "1900", "-t", "1", "--effort", "off", "--session", session},
               "Tell me all of it.\nAnd then?\n");
  while (chat.OutSoFar().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  chat.Signal(SIGHUP);
  chat.Signal(SIGHUP);
  EXPECT_EQ(chat.Wait().exit_code, 130);
  EXPECT_THAT(
      Shell("echo /stats | $T chat -t 1 --effort off --session session").err,
      AllOf(HasSubstr("> Tell me all of it."), HasSubstr("/continue"), HasSubstr("in 1 turns")));
}

}  // namespace
}  // namespace thimble
