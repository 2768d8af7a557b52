#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/checkpoint_builder.h"
#include "support/file_edit.h"
#include "support/small_ranks.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

// Runs the program in a folder of its own, which it may write a probe file to.
class DoctorCommandTest : public ::testing::Test {
 protected:
  DoctorCommandTest() : home_(std::filesystem::current_path()) {
    std::filesystem::create_directory(dir_ / "work");
    std::filesystem::current_path(dir_ / "work");
  }
  ~DoctorCommandTest() override { std::filesystem::current_path(home_); }

  static Program::Result Doctor(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"doctor", "--probe", "16M"});
    return Program::Run(arguments);
  }

  std::filesystem::path WriteModel() const {
    CheckpointDims dims;
    dims.vocab = 512;
    const std::filesystem::path model = dir_ / "model";
    std::filesystem::create_directory(model);
    CheckpointBuilder::KimiK3(dims).Write(model);
    WriteText(model / "tiktoken.model", SmallRankFile({}));
    return model;
  }

  // The same model as a container.
  std::string Pack() const {
    const std::string packed = dir_ / "packed";
    const auto result = Program::Run({"pack", "-m", WriteModel().string(), "-o", packed});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return packed;
  }

  static Json Check(const Json& report, const std::string& name) {
    for (const Json& check : report["checks"]) {
      if (check["name"] == name) return check;
    }
    ADD_FAILURE() << "no check of " << name << " in " << report.dump(2);
    return {};
  }

  TempDir dir_;
  std::filesystem::path home_;
};

TEST_F(DoctorCommandTest, ReportsOnTheMachineAlone) {
  const auto result = Doctor({"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  for (const char* name : {"cpu", "cores", "memory", "swap", "memlock", "file system", "drive"}) {
    const Json check = Check(report, name);
    EXPECT_THAT(check["status"].get<std::string>(), testing::AnyOf("ok", "warn")) << name;
    EXPECT_FALSE(check["found"].get<std::string>().empty()) << name;
    if (check["status"] == "warn") {
      EXPECT_TRUE(check.contains("remedy")) << name;
    }
  }
  EXPECT_GE(Check(report, "cores")["figures"]["usable"], 1);
  EXPECT_GT(Check(report, "memory")["figures"]["total_bytes"], 0);
  EXPECT_TRUE(Check(report, "drive")["figures"].contains("bytes_per_s"));
  EXPECT_EQ(report["healthy"], true);
  EXPECT_THAT(report["next"].get<std::string>(), StartsWith("thimble plan"));
}

TEST_F(DoctorCommandTest, TheProbeFileIsGone) {
  ASSERT_EQ(Doctor({}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "work"));
}

TEST_F(DoctorCommandTest, TextSaysWhatToDoNext) {
  const std::string model = WriteModel().string();
  const auto result = Doctor({"-m", model});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::AllOf(HasSubstr("weights"), HasSubstr("a token expected"),
                                         HasSubstr("next: thimble run -m " + model)));
}

TEST_F(DoctorCommandTest, ASoundModelGetsAPace) {
  const auto result = Doctor({"-m", WriteModel().string(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  EXPECT_EQ(Check(report, "tokenizer")["status"], "ok");
  EXPECT_EQ(Check(report, "weights")["figures"]["shards"], 6);
  EXPECT_GT(Check(report, "pace")["figures"]["seconds_per_token"], 0);
}

TEST_F(DoctorCommandTest, APackedModelGetsAPaceAndTheCommandToRun) {
  const std::string packed = Pack();
  const auto result = Doctor({"-m", packed, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  EXPECT_EQ(Check(report, "tokenizer")["status"], "ok");
  const Json weights = Check(report, "weights");
  EXPECT_EQ(weights["figures"]["packed"], true);
  EXPECT_EQ(weights["figures"]["files"], 5);
  EXPECT_THAT(weights["found"].get<std::string>(), HasSubstr("packed container: 5 files"));
  EXPECT_GT(Check(report, "pace")["figures"]["seconds_per_token"], 0);
  EXPECT_THAT(report["next"].get<std::string>(), HasSubstr("thimble run -m " + packed));
}

TEST_F(DoctorCommandTest, ADamagedContainerFailsAndIsNamed) {
  const std::filesystem::path packed = Pack();
  Truncate(packed / "experts-002.bin", 4096);
  const auto result = Doctor({"-m", packed.string(), "--json"});
  EXPECT_EQ(result.exit_code, 3);
  const Json check = Check(Json::parse(result.out), "weights");
  EXPECT_EQ(check["status"], "fail");
  EXPECT_THAT(check["found"].get<std::string>(), HasSubstr("experts-002.bin"));
  EXPECT_THAT(check["remedy"].get<std::string>(), HasSubstr("pack the model again"));
}

TEST_F(DoctorCommandTest, AnUnfinishedContainerSaysHowToFinishIt) {
  const std::filesystem::path packed = Pack();
  std::filesystem::rename(packed / "manifest.json", packed / "journal.txt");
  const auto result = Doctor({"-m", packed.string()});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, testing::AllOf(HasSubstr("not finished"), HasSubstr("thimble pack")));
}

TEST_F(DoctorCommandTest, AMissingTokenizerIsAWarning) {
  const auto model = WriteModel();
  std::filesystem::remove(model / "tiktoken.model");
  const auto result = Doctor({"-m", model.string(), "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const Json report = Json::parse(result.out);
  EXPECT_EQ(Check(report, "tokenizer")["status"], "warn");
  EXPECT_THAT(report["next"].get<std::string>(), HasSubstr("--ids"));
}

TEST_F(DoctorCommandTest, ADamagedShardFailsAndIsNamed) {
  const auto model = WriteModel();
  const std::string shard = "model-00002-of-000006.safetensors";
  Truncate(model / shard, 100);
  const auto result = Doctor({"-m", model.string(), "--json"});
  EXPECT_EQ(result.exit_code, 3);
  const Json report = Json::parse(result.out);
  EXPECT_EQ(report["healthy"], false);
  const Json check = Check(report, "weights");
  EXPECT_EQ(check["status"], "fail");
  EXPECT_THAT(check["found"].get<std::string>(), HasSubstr(shard));
  EXPECT_THAT(check["remedy"].get<std::string>(), HasSubstr("download"));
}

TEST_F(DoctorCommandTest, MissingShardsAndDirectoriesFail) {
  const auto model = WriteModel();
  std::filesystem::remove(model / "model-00003-of-000006.safetensors");
  EXPECT_EQ(Doctor({"-m", model.string()}).exit_code, 3);
  const auto nowhere = Doctor({"-m", (dir_ / "nowhere").string()});
  EXPECT_EQ(nowhere.exit_code, 3);
  EXPECT_THAT(nowhere.out, HasSubstr("nowhere"));
}

TEST_F(DoctorCommandTest, TooLittleMemoryForTheModelFailsWithTheLedger) {
  const auto result = Doctor({"-m", WriteModel().string(), "--memory", "1M"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.out, HasSubstr("session state"));
}

}  // namespace
}  // namespace thimble
