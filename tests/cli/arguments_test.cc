#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "cli/program.h"

namespace thimble {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::vector<std::string> kMalformed = {
    "", " ", "-1", "nan", "inf", "1e999", "5abc", "0x10", "1,000", "--1", "99999999999999999999"};

// An option of a command, and what its message says of the range.
struct Case {
  std::vector<std::string> command;  // with what else it needs
  std::string option;
  std::vector<std::string> outside;  // beside what is malformed
  std::string expected;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.command[0] << " " << one.option; }

void ExpectRefused(const Case& one, const std::string& value) {
  std::vector<std::string> arguments = one.command;
  arguments.insert(arguments.end(), {one.option, value});
  const auto result = Program::Run(arguments);
  SCOPED_TRACE(one.command[0] + " " + one.option + " '" + value + "'");
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, StartsWith("thimble: "));
  // A value that looks like an option is one.
  if (value.starts_with("--")) return;
  EXPECT_THAT(result.err, HasSubstr(one.expected));
}

const std::vector<std::string> kRun = {"run", "-p", "a"};
const std::vector<std::string> kSynth = {"synth", "--arch", "k3-small", "-o", "/nowhere/at/all"};
const std::vector<std::string> kEval = {"eval", "-f", "/nowhere/at/all"};
const std::vector<std::string> kPlan = {"plan", "--arch", "kimi-k3"};
const std::string kTokens = "a whole number from 1 to 1073741824";
const std::string kSize = "a size like 1.5G, 512M or 8GiB";

class NumberTest : public testing::TestWithParam<Case> {};

TEST_P(NumberTest, RefusesWhatIsMalformedOrOutOfRangeWithTheRange) {
  for (const std::string& value : kMalformed) ExpectRefused(GetParam(), value);
  for (const std::string& value : GetParam().outside) ExpectRefused(GetParam(), value);
}

INSTANTIATE_TEST_SUITE_P(
    Run, NumberTest,
    testing::Values(Case{kRun, "-n", {"1073741825"}, "a whole number from 0 to 1073741824"},
                    Case{kRun, "--context", {"0"}, kTokens},
                    Case{
                        kRun, "--seed", {"18446744073709551616"}, "from 0 to 18446744073709551615"},
                    Case{kRun, "--temp", {"1001"}, "a number from 0 to 1000"},
                    Case{kRun, "--top-k", {"4294967296"}, "from 0 to 4294967295"},
                    Case{kRun, "--top-p", {"0", "1.01"}, "a number above 0 and up to 1"},
                    Case{kRun, "--min-p", {"1.01"}, "a number from 0 to 1"},
                    Case{kRun, "--repeat-penalty", {"0"}, "a number above 0 and up to 1000"},
                    Case{kRun, "--prefill-chunk", {"0", "65537"}, "from 1 to 65536"},
                    Case{kRun, "--threads", {"0", "1025"}, "from 1 to 1024"},
                    Case{kRun, "--memory", {"0", "5X"}, kSize}));

INSTANTIATE_TEST_SUITE_P(
    Others, NumberTest,
    testing::Values(Case{{"chat"}, "-n", {"0"}, kTokens}, Case{{"chat"}, "-c", {"0"}, kTokens},
                    Case{{"chat"}, "--temp", {}, "from 0 to 1000"},
                    Case{{"serve"}, "--port", {"65536"}, "from 0 to 65535"},
                    Case{{"serve"}, "--parallel", {"0", "65"}, "from 1 to 64"},
                    Case{{"serve"}, "--queue", {"0", "1025"}, "from 1 to 1024"},
                    Case{{"serve"}, "--connections", {"0", "65537"}, "from 1 to 65536"},
                    Case{{"serve"}, "-c", {"0"}, kTokens}, Case{kEval, "-c", {"0"}, "from 2 to"},
                    Case{kPlan, "--drive", {"0", "10001"}, "a number from 0.001 to 10000"},
                    Case{kPlan, "--cores", {"0", "1025"}, "from 1 to 1024"},
                    Case{kPlan, "-c", {"0"}, kTokens}, Case{kPlan, "--memory", {"0"}, kSize},
                    Case{{"doctor"}, "--probe", {"1", "2T"}, "from 1.00 MB to 1.00 TB"},
                    Case{{"bench"}, "-t", {"0"}, "from 1 to 1024"},
                    Case{kSynth, "--layers", {"0"}, "from 1 to 1048576"},
                    Case{kSynth, "--experts", {"0"}, "from 1 to 1048576"},
                    Case{kSynth, "--distinct-layers", {"0"}, "from 1 to 1048576"},
                    Case{kSynth, "--distinct-experts", {"0"}, "from 1 to 1048576"},
                    Case{kSynth, "--seed", {}, "a whole number from 0"}));

TEST(TextArgumentTest, EmptyOnesAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> commands = {
      {{"run"}, {"-m", "-p", "-f", "--stop", "--session", "--stats", "--logits", "--kv", "--io"}},
      {{"chat"}, {"-m", "--system", "--session", "--effort"}},
      {{"serve"}, {"--host", "--api-key", "--cors", "--allow-host", "--name"}},
      {{"inspect"}, {"-m"}},
      {{"tokenize"}, {"-m"}},
      {{"detokenize"}, {"-m"}},
      {{"eval"}, {"-m", "-f"}},
      {{"plan"}, {"-m", "--arch"}},
      {{"doctor"}, {"-m"}},
      {{"bench"}, {"-m", ""}},
      {{"pack", "-o", "/nowhere/at/all"}, {"-m"}},
      {{"pack", "-m", "/nowhere/at/all"}, {"-o", "--experts", "--trunk"}},
      {{"verify"}, {"-m"}},
      {{"synth", "-o", "/nowhere/at/all"}, {"--arch"}},
      {{"synth", "--arch", "k3-small"}, {"-o"}}};
  for (const auto& [command, options] : commands) {
    for (const std::string& option : options) {
      std::vector<std::string> arguments = command;
      if (!option.empty()) arguments.push_back(option);
      arguments.emplace_back();
      const auto result = Program::Run(arguments);
      EXPECT_EQ(result.exit_code, 2) << command[0] << " " << option << ": " << result.err;
      EXPECT_THAT(result.err, StartsWith("thimble: ")) << command[0] << " " << option;
    }
  }
}

TEST(IdsArgumentTest, OnlyIdsAreTaken) {
  for (const std::string value : {"", ",", "[]", "x", "-1", "1,x", "5abc", "1.5", "4294967296"}) {
    const auto result = Program::Run({"run", "--ids", value, "-n", "1"});
    EXPECT_EQ(result.exit_code, 2) << value;
    EXPECT_THAT(result.err, HasSubstr("--ids")) << value;
  }
  const auto result = Program::Run({"run", "--ids", "1, 2", "3", "-n", "0", "-t", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("prompt 3 tokens"));
}

}  // namespace
}  // namespace thimble
