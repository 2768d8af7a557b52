// What the program does where the system gives it little: a message with the limit and the remedy,
// and the exit code of a failure while running. Nothing here may end by a signal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/checkpoint_builder.h"
#include "support/file_edit.h"
#include "support/sanitizers.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LimitsTest : public ::testing::Test {
 protected:
  struct Result {
    int exit_code;
    std::string out;
    std::string err;
  };

  LimitsTest() {
    if (kSanitized) return;
    std::filesystem::create_directory(model_);
    CheckpointBuilder::KimiK3().Write(model_);
  }
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory has no limit";
  }

  // Runs the program in a shell that has lowered a limit: "ulimit -n 6".
  Result RunUnder(const std::string& limit, const std::string& arguments) const {
    const std::string out = dir_ / "out";
    const std::string err = dir_ / "err";
    // Redirected first: the shell itself needs descriptors for that.
    const std::string command = "exec >" + out + " 2>" + err + " </dev/null; " + limit +
                                "; exec " THIMBLE_BINARY " " + arguments;
    const int status = std::system(command.c_str());  // NOLINT(cert-env33-c): limits need a shell
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), ReadBytes(out),
            ReadBytes(err)};
  }
  std::string Run() const { return "run --ids 1,2,3 -n 2 -t 4 -m " + model_.string(); }

  void ExpectFailure(const Result& result, const std::string& limit) const {
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("thimble: "), HasSubstr(limit)));
  }

  TempDir dir_;
  const std::filesystem::path model_ = dir_ / "model";
};

TEST_F(LimitsTest, TooFewOpenFilesAreNoFaultOfTheModel) {
  const std::string model = model_.string();
  for (const std::string& command : {Run(), "pack -m " + model + " -o " + model + "-p",
                                     "serve --port 0 -m " + model, std::string("chat")}) {
    SCOPED_TRACE(command);
    ExpectFailure(RunUnder("ulimit -n 5", command), "ulimit -n");
  }
}

TEST_F(LimitsTest, ASoftLimitOnOpenFilesIsRaised) {
  EXPECT_EQ(RunUnder("ulimit -Sn 5", Run()).exit_code, 0);
}

TEST_F(LimitsTest, TooLittleMemoryOfAnyKindSaysWhichLimit) {
  for (const int kibibytes : {20'000, 30'000, 50'000}) {
    const std::string number = std::to_string(kibibytes);
    for (const std::string option : {"-v", "-d"}) {
      SCOPED_TRACE(option + " " + number);
      const Result result = RunUnder("ulimit " + option + " " + number, Run());
      // The loader, which comes before the program, ends with 127.
      if (result.exit_code != 0 && result.exit_code != 127) {
        ExpectFailure(result, "ulimit " + option);
      }
    }
  }
}

TEST_F(LimitsTest, TooLittleStackIsRefused) {
  ExpectFailure(RunUnder("ulimit -s 100", Run()), "ulimit -s");
}

TEST_F(LimitsTest, AFileThatMayNotGrowEndsWithAMessage) {
  const std::string packed = dir_ / "packed";
  const Result result = RunUnder("ulimit -f 20", "pack -m " + model_.string() + " -o " + packed);
  ExpectFailure(result, "ulimit -f");
  EXPECT_FALSE(std::filesystem::exists(packed + "/manifest.json"));
}

TEST_F(LimitsTest, DoctorShowsThem) {
  const Result result = RunUnder("ulimit -n 100; ulimit -f 100000", "doctor --json --probe 16M");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  for (const auto& check : report["checks"]) {
    if (check["name"] != "limits") continue;
    EXPECT_EQ(check["status"], "warn");
    EXPECT_EQ(check["figures"]["open files"], 100);
    EXPECT_THAT(check["remedy"].get<std::string>(), HasSubstr("ulimit -n"));
    return;
  }
  ADD_FAILURE() << "no limits in " << result.out;
}

TEST_F(LimitsTest, ABudgetBeyondTheMachineIsLoweredAloud) {
  const Result run = RunUnder("true", Run() + " --memory 900T");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, AllOf(HasSubstr("warning: --memory: 900 TB"), HasSubstr("continuing with")));
  const Result doctor = RunUnder("true", "doctor --memory 900T --probe 16M");
  EXPECT_THAT(doctor.out, HasSubstr("more than this process can hold"));
  const Result plan = RunUnder("true", "plan --drive 3 -c 8 --memory 900T -m " + model_.string());
  EXPECT_THAT(plan.err, HasSubstr("note: --memory"));
  EXPECT_THAT(plan.out, HasSubstr("900 TB"));
}

}  // namespace
}  // namespace thimble
