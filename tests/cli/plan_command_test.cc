#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "cli/program.h"
#include "format/published_models.h"
#include "support/checkpoint_builder.h"
#include "support/file_edit.h"
#include "support/sanitizers.h"
#include "support/shared_data.h"
#include "support/sparse_container.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json PlanJson(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  arguments.push_back("--json");
  const auto result = Program::Run(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return Json::parse(result.out, nullptr, false);
}

TEST(PlanCommandTest, KimiK3CanBePlannedForBeforeAnyDownload) {
  const Json plan =
      PlanJson({"--arch", "kimi-k3", "--memory", "8.24G", "--drive", "7", "--cores", "2"});
  EXPECT_EQ(plan["downloaded"], false);
  EXPECT_NEAR(plan["disk_bytes"].get<double>(), 1.56e12, 0.002e12);
  EXPECT_EQ(plan["memory"]["budget_bytes"], 8'240'000'000);
  EXPECT_LE(plan["memory"]["total_bytes"], 8'240'000'000);
  double ledger = 0;
  for (const auto& [name, bytes] : plan["memory"]["ledger"].items()) ledger += bytes.get<double>();
  EXPECT_EQ(ledger, plan["memory"]["total_bytes"].get<double>());

  const Json& cold = plan["bytes_per_token"]["nothing_resident"];
  EXPECT_NEAR(cold["trunk_layers"].get<double>() + cold["routed_experts"].get<double>(), 134.6e9,
              0.05e9);
  const double saved =
      cold["total"].get<double>() - plan["bytes_per_token"]["expected"]["total"].get<double>();
  const double pinned = plan["memory"]["pinned_trunk_bytes"];
  EXPECT_NEAR(saved, pinned, 0.002 * pinned);

  EXPECT_EQ(plan["machine"]["drive_bytes_per_s"], 7e9);
  EXPECT_GT(plan["machine"]["products"]["bf16"]["bytes_per_s"], 0);
  EXPECT_GT(plan["machine"]["products"]["mxfp4"]["flops"], 0);
  const double seconds = plan["seconds_per_token"];
  EXPECT_EQ(seconds, std::max(plan["read_seconds_per_token"].get<double>(),
                              plan["compute_seconds_per_token"].get<double>()));
  EXPECT_GT(plan["prompt"]["seconds_per_token"], 0);
  EXPECT_EQ(plan["choices"].size(), 7U);
  EXPECT_EQ(plan["choices"][0]["seconds_per_token"].size(), 4U);
  EXPECT_EQ(plan["context"]["bytes_per_token"], 24 * 576 * 4);
  EXPECT_EQ(plan["context"]["total_bytes"].size(), 3U);
  EXPECT_EQ(plan["context"]["by_kv"]["bf16"]["bytes_per_token"], 24 * 576 * 2);
  EXPECT_EQ(plan["context"]["by_kv"]["fp8"]["bytes_per_token"], 24 * 578);
  EXPECT_FALSE(plan["assumptions"].empty());
}

TEST(PlanCommandTest, TheDefaultContextFitsASmallModel) {
  const auto result = Program::Run({"plan", "--drive", "1", "--cores", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(PlanCommandTest, TextNamesEveryPart) {
  const auto result = Program::Run({"plan", "--arch", "kimi-linear-48b", "--memory", "8G"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("kimi-linear-48b"), HasSubstr("session state"),
                                HasSubstr("routed experts"), HasSubstr("a token"),
                                HasSubstr("on disk"), HasSubstr("12 GB/s"), HasSubstr("--kv fp8"),
                                HasSubstr("reported by others"), HasSubstr("thimble doctor")));
}

TEST(PlanCommandTest, ANarrowCacheIsPlannedAsTold) {
  const std::vector<std::string> common = {"--arch", "kimi-k3", "--memory", "20G", "-c", "131072"};
  const Json wide = PlanJson(common);
  std::vector<std::string> with_fp8 = common;
  with_fp8.insert(with_fp8.end(), {"--kv", "fp8"});
  const Json narrow = PlanJson(with_fp8);
  EXPECT_EQ(wide["context"]["kv"], "f32");
  EXPECT_EQ(narrow["context"]["kv"], "fp8");
  const auto state = [](const Json& plan) {
    return plan["memory"]["ledger"]["session state"].get<int64_t>();
  };
  EXPECT_EQ(state(wide) - state(narrow), int64_t{24} * (576 * 4 - 578) * 131072);
  EXPECT_EQ(state(narrow), narrow["context"]["total_bytes"]["128K"].get<int64_t>());
}

TEST(PlanCommandTest, TooLittleMemoryShowsTheLedger) {
  const auto result = Program::Run({"plan", "--arch", "kimi-k3", "--memory", "300M"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("session state"), HasSubstr("in all"), HasSubstr("--memory")));
}

TEST(PlanCommandTest, WrongUsageIsExplained) {
  const auto unknown = Program::Run({"plan", "--arch", "kimi-k4"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("kimi-k4"), HasSubstr("kimi-linear-48b")));
  EXPECT_EQ(Program::Run({"plan", "--arch", "kimi-k3", "-m", "x"}).exit_code, 2);
  EXPECT_EQ(Program::Run({"plan", "--arch", "kimi-k3", "--drive", "0"}).exit_code, 2);
  EXPECT_EQ(Program::Run({"plan", "--arch", "kimi-k3", "-c", "2000000"}).exit_code, 2);
}

// The sanitizers' own memory is part of the process.
const char* const kMemory = kSanitized ? "1G" : "100M";

// The ledger of the plan against that of a run of the same model.
void ExpectThePlanOfTheEngine(const std::filesystem::path& model) {
  TempDir dir;
  const std::vector<std::string> common = {"-m", model.string(), "--memory", kMemory, "-c", "128"};
  const Json plan = PlanJson(common);
  EXPECT_EQ(plan["downloaded"], true);
  const auto stats = dir / "stats.json";
  std::vector<std::string> run = {"run", "--ids", "1", "-n", "1", "--stats", stats.string()};
  run.insert(run.end(), common.begin(), common.end());
  ASSERT_EQ(Program::Run(run).exit_code, 0);
  const Json ledger = Json::parse(ReadBytes(stats))["budget_ledger"];
  const double other_process =
      std::abs(ledger["process"].get<double>() - plan["memory"]["ledger"]["process"].get<double>());
  for (const auto& [name, bytes] : plan["memory"]["ledger"].items()) {
    // The two processes need not have the same size, and the run's sampler is gone at its end.
    if (name == "process" || name == "sampler" || bytes == 0) continue;
    ASSERT_TRUE(ledger.contains(name)) << name;
    if (name == "page tables") {  // a 512th of all, the process too
      EXPECT_NEAR(ledger[name].get<double>(), bytes.get<double>(), 4096 + other_process / 256);
      continue;
    }
    EXPECT_EQ(ledger[name], bytes) << name;
  }
}

TEST(PlanCommandTest, AModelOnDiskIsPlannedAsTheEngineWould) {
  TempDir dir;
  CheckpointBuilder::KimiK3().Write(dir.path());
  ExpectThePlanOfTheEngine(dir.path());
}

TEST(PlanCommandTest, APackedModelIsPlannedAsTheEngineWould) {
  TempDir dir;
  std::filesystem::create_directory(dir / "model");
  CheckpointBuilder::KimiK3().Write(dir / "model");
  const std::string packed = dir / "packed";
  ASSERT_EQ(Program::Run({"pack", "-m", dir / "model", "-o", packed}).exit_code, 0);
  ExpectThePlanOfTheEngine(packed);
  const Json plan = PlanJson({"-m", packed, "--memory", kMemory, "-c", "128"});
  EXPECT_EQ(plan["packed"], true);
  EXPECT_EQ(plan["shared_extents"], false);
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(packed)) {
    if (entry.path().extension() == ".bin" && entry.path().filename() != kExtentTableFile) {
      bytes += entry.file_size();
    }
  }
  EXPECT_EQ(plan["disk_bytes"], bytes);
}

// What the process will weigh before any weight is read is measured on a container of full size,
// with the real tokenizer, and estimated where nothing is downloaded.
TEST(PlanCommandTest, TheProcessIsEstimatedAsItWillBeMeasured) {
  if (kSanitized) GTEST_SKIP() << "a sanitized process has another size";
  THIMBLE_NEED_SHARED("data/tokenizer/tiktoken.model");
  TempDir dir;
  WriteSparseContainer(dir.path(), "kimi-k3");
  for (const char* name : {"tiktoken.model", "tokenizer_config.json"}) {
    std::filesystem::copy_file(SharedDir() / "data/tokenizer" / name, dir / name);
  }
  const auto refused =
      Program::Run({"run", "-m", dir.path().string(), "--ids", "1", "-n", "1", "--memory", "1M"});
  std::smatch line;
  ASSERT_TRUE(std::regex_search(refused.err, line, std::regex("([0-9.]+) MB  process")))
      << refused.err;
  const double measured = std::stod(line[1]) * 1e6;
  const Json plan =
      PlanJson({"--arch", "kimi-k3", "--memory", "8G", "--cores", "2", "--drive", "1"});
  const auto estimated = plan["memory"]["ledger"]["process"].get<double>();
  EXPECT_GE(estimated, measured);
  EXPECT_LE(estimated, measured + 7e6);  // a download takes 5 MB more than a container
}

TEST(PlanCommandTest, AConfigurationAloneIsEnough) {
  TempDir dir;
  WriteText(dir / "config.json", std::string(PublishedConfig("kimi-linear-48b")));
  const Json plan = PlanJson({"-m", dir.path().string(), "--memory", "8G"});
  EXPECT_EQ(plan["downloaded"], false);
  EXPECT_THAT(plan["machine"]["drive_source"].get<std::string>(), HasSubstr("assumed"));
}

}  // namespace
}  // namespace thimble
