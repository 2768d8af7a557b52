#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/checkpoint_builder.h"
#include "support/sanitizers.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

// Runs the program in a folder of its own, which it may write a probe file to.
class BenchCommandTest : public ::testing::Test {
 protected:
  BenchCommandTest() : home_(std::filesystem::current_path()) {
    CheckpointBuilder::KimiK3().Write(dir_.path());
    std::filesystem::create_directory(dir_ / "work");
    std::filesystem::current_path(dir_ / "work");
  }
  ~BenchCommandTest() override { std::filesystem::current_path(home_); }

  Program::Result Bench(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"bench", "-m", dir_.path().string(), "-t", "2"});
    return Program::Run(arguments);
  }

  // What --json gives for a part, its results checked for what holds of all.
  Json Report(const std::string& part) const {
    const auto result = Bench({part, "--json", "--memory", "500M"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const Json report = Json::parse(result.out);
    EXPECT_TRUE(report["simd"].is_string());
    EXPECT_EQ(report["threads"], 2);
    EXPECT_EQ(report["budget_bytes"], 500'000'000);
    if (!kSanitized) {
      EXPECT_LE(report["peak_rss_bytes"], report["budget_bytes"]);
    }
    for (const Json& one : report["results"]) {
      SCOPED_TRACE(one.dump());
      EXPECT_EQ(one["part"], part);
      EXPECT_EQ(one["verified"], true);
      EXPECT_GE(one["rounds"], 1);
      EXPECT_GT(one["least"], 0);
      EXPECT_LE(one["least"], one["median"]);
      EXPECT_LE(one["median"], one["most"]);
      EXPECT_EQ(one["share"].is_null(), one["limit"].is_null());
      if (one["share"].is_null()) continue;
      EXPECT_NEAR(one["share"].get<double>(),
                  one["median"].get<double>() / one["limit"].get<double>(), 1e-9);
      // More than the machine can do it does not, but a busy one varies between the two figures.
      EXPECT_GT(one["share"], 0);
      if (part == "kernels") {
        EXPECT_LT(one["share"], 3);
      }
    }
    return report;
  }

  TempDir dir_;
  std::filesystem::path home_;
};

TEST_F(BenchCommandTest, KernelsStandBesideTheMachine) {
  const Json report = Report("kernels");
  std::set<std::string> names;
  for (const Json& one : report["results"]) {
    names.insert(one["name"].get<std::string>());
    EXPECT_FALSE(one["share"].is_null());
    const auto name = one["name"].get<std::string>();
    const bool computes = name.starts_with("matmul") || name.starts_with("MLA");
    EXPECT_EQ(one["unit"], computes ? "flops" : "bytes_per_s");
  }
  for (const char* name :
       {"matvec BF16", "matvec F32", "matvec MXFP4", "matvec coded BF16", "matvec Q8, short rows",
        "matmul BF16, 512 tokens", "matmul MXFP4, 4 tokens", "KDA step", "MLA attention"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST_F(BenchCommandTest, TheDriveIsMeasuredOrItIsSaidWhyNot) {
  const Json report = Report("io");
  const bool measured = report["not_measured"].empty();
  EXPECT_EQ(report["results"].size(), measured ? 2U : 0U);
  if (!measured) {
    EXPECT_TRUE(report["not_measured"]["io"].is_string());
  }
  EXPECT_TRUE(std::filesystem::is_empty("."));  // the probe file is gone
}

TEST_F(BenchCommandTest, SweepsSayWhatSetThePace) {
  for (const std::string part : {"decode", "prefill"}) {
    const Json report = Report(part);
    ASSERT_EQ(report["results"].size(), 1U);
    const Json& one = report["results"][0];
    EXPECT_EQ(one["unit"], "tokens_per_s");
    EXPECT_GE(one["tokens"], 2);
    EXPECT_GT(one["read_bytes_per_token"], 0);
    EXPECT_NEAR(one["io_bound_share"].get<double>() + one["compute_bound_share"].get<double>(), 1,
                1e-9);
  }
}

TEST_F(BenchCommandTest, PeopleGetATable) {
  const auto result = Bench({"decode"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(StartsWith("decode: "), HasSubstr(" tokens/s "), HasSubstr(" to "),
                                HasSubstr("the drive set the pace for ")));
}

TEST_F(BenchCommandTest, WrongUsageIsExplained) {
  const auto expect = [](const Program::Result& result, int code, const std::string& part) {
    EXPECT_EQ(result.exit_code, code);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(StartsWith("thimble: "), HasSubstr(part)));
  };
  expect(Bench({"everything"}), 2, "everything");
  expect(Bench({"kernels", "--memory", "plenty"}), 2, "plenty");
  expect(Bench({"kernels", "--fast"}), 2, "--fast");
  expect(Program::Run({"bench", "decode", "-m", (dir_ / "nowhere").string()}), 3, "nowhere");
  expect(Bench({"decode", "--memory", "1M"}), 4, "the least that works");
}

TEST_F(BenchCommandTest, KernelsKeepTheBudget) {
  if (kSanitized) GTEST_SKIP() << "a sanitized process has another size";
  const auto result = Bench({"kernels", "--memory", "30M", "--json"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(StartsWith("thimble: "), HasSubstr("weights to measure by")));
}

}  // namespace
}  // namespace thimble
