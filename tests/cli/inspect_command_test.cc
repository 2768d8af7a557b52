#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/checkpoint_builder.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using testing::HasSubstr;

class InspectCommandTest : public testing::Test {
 protected:
  TempDir dir_;
  CheckpointBuilder builder_ = CheckpointBuilder::KimiLinear();
};

TEST_F(InspectCommandTest, ShowsAPartialDownloadInsteadOfRefusingIt) {
  builder_.Write(dir_.path());
  std::filesystem::remove(dir_ / builder_.ShardName(0));
  Truncate(dir_ / builder_.ShardName(1), 5);
  const auto text = Program::Run({"inspect", "-m", dir_.path().string()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("cut: " + builder_.ShardName(1)));
  EXPECT_THAT(text.out, HasSubstr("missing: " + builder_.ShardName(0)));
  const auto result = Program::Run({"inspect", "--json", "-m", dir_.path().string()});
  const auto json = nlohmann::json::parse(result.out)["download"];
  EXPECT_EQ(json["complete"], false);
  EXPECT_EQ(json["incomplete"].size(), 2);
  EXPECT_EQ(json["incomplete"][0]["state"], "missing");
  EXPECT_EQ(json["incomplete"][1]["state"], "cut");
  EXPECT_EQ(json["incomplete"][1]["expected_bytes"],
            json["incomplete"][1]["bytes"].get<size_t>() + 5);
  const std::vector<std::vector<std::string>> commands = {
      {"run", "--ids", "1", "--out-ids", "-n", "1"}, {"plan"}, {"verify"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"-m", dir_.path().string()});
    const auto refused = Program::Run(command);
    EXPECT_EQ(refused.exit_code, 3) << command[0];
    EXPECT_THAT(refused.err, HasSubstr("the download is not complete")) << command[0];
    EXPECT_THAT(refused.err, HasSubstr("missing: " + builder_.ShardName(0))) << command[0];
  }
}

TEST_F(InspectCommandTest, ANameThatIsNoUtf8DoesNotEndJson) {
  const std::filesystem::path model = dir_ / "m\xff";
  std::filesystem::create_directories(model);
  builder_.Write(model);
  Truncate(model / builder_.ShardName(1), 5);
  WriteText(model / "x\xff.part", "");
  const auto result = Program::Run({"inspect", "--json", "-m", model.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["download"]["unfinished"].size(), 1);
}

}  // namespace
}  // namespace thimble
