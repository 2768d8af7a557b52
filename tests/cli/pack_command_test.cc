#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"
#include "format/tensor_store.h"
#include "support/checkpoint_builder.h"
#include "support/directory_bytes.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PackCommandTest : public ::testing::Test {
 protected:
  PackCommandTest() {
    std::filesystem::create_directory(dir_ / "model");
    CheckpointBuilder::KimiK3().Write(dir_ / "model");
  }

  Program::Result Pack() { return Program::Run({"pack", "-m", model_, "-o", packed_}); }

  TempDir dir_;
  const std::string model_ = dir_ / "model";
  const std::string packed_ = dir_ / "packed";
};

TEST_F(PackCommandTest, APackedModelRunsInspectsAndVerifiesAsTheOriginalDoes) {
  const auto pack = Pack();
  EXPECT_EQ(pack.exit_code, 0) << pack.err;
  EXPECT_THAT(pack.out, HasSubstr("5 files"));
  EXPECT_THAT(Pack().out, HasSubstr("complete already"));
  const auto run = [](const std::string& model) {
    return Program::Run({"run", "-m", model, "--ids", "1,2,3", "-n", "5", "--out-ids"});
  };
  EXPECT_EQ(run(packed_).out, run(model_).out);
  EXPECT_EQ(run(packed_).exit_code, 0);
  EXPECT_THAT(Program::Run({"inspect", "-m", packed_}).out,
              AllOf(HasSubstr("packed container: 5 files"), HasSubstr("routed experts")));
  EXPECT_THAT(Program::Run({"verify", "-m", packed_}).out, HasSubstr("checksums are right"));
  EXPECT_THAT(Program::Run({"verify", "-m", model_}).out, HasSubstr("6 shards"));
}

TEST_F(PackCommandTest, DamageIsNamedAndExits3) {
  Pack();
  FlipBit(dir_ / "packed" / "experts-001.bin", 5000);
  const auto verify = Program::Run({"verify", "-m", packed_});
  EXPECT_EQ(verify.exit_code, 3);
  EXPECT_THAT(verify.err, AllOf(HasSubstr("experts-001.bin"), HasSubstr("layer 1, expert")));
}

TEST_F(PackCommandTest, WhatCodedScalesBringIsSaidUnlessTheyAreLeftOff) {
  const std::vector<std::string> plan = {"plan", "--drive", "1", "-c", "16", "-m"};
  const auto plan_of = [&](const std::string& model, bool json) {
    std::vector<std::string> arguments = plan;
    arguments.push_back(model);
    if (json) arguments.emplace_back("--json");
    return Program::Run(arguments).out;
  };
  Pack();
  EXPECT_THAT(Program::Run({"inspect", "-m", packed_}).out,
              HasSubstr("experts with coded scales: 96.1 % of their bytes; 0 of 32 stay plain"));
  EXPECT_THAT(Program::Run({"inspect", "-m", packed_, "--json"}).out,
              AllOf(HasSubstr("\"coded_scales\": true"), HasSubstr("\"expert_share\": 0.96")));
  EXPECT_THAT(plan_of(packed_, false), HasSubstr("an expert is read in 96.1 % of its 1.63 kB"));
  EXPECT_THAT(plan_of(packed_, true), HasSubstr("\"stored_expert_share\": 0.96"));
  const std::string raw = dir_ / "raw";
  ASSERT_EQ(Program::Run({"pack", "-m", model_, "-o", raw, "--raw"}).exit_code, 0);
  EXPECT_THAT(Program::Run({"inspect", "-m", raw}).out, Not(HasSubstr("coded scales")));
  EXPECT_THAT(plan_of(raw, false), Not(HasSubstr("an expert is read")));
}

TEST_F(PackCommandTest, DamagedScalesEndARunWithTheirPlace) {
  Pack();
  const TensorStore store = TensorStore::Open(packed_, ReadModelConfig(packed_));
  for (size_t expert = 0; expert < 8; ++expert) {
    Overwrite(dir_ / "packed" / "experts-001.bin", store.Expert(1, expert)[1].offset, "\x07");
  }
  const auto run = Program::Run({"run", "-m", packed_, "--ids", "1,2,3", "-n", "2", "--out-ids"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, AllOf(HasSubstr("experts-001.bin"), HasSubstr("layer 1, expert "),
                             HasSubstr("coded scales")));
}

TEST_F(PackCommandTest, ARunComparesWithTheChecksumsWhereToldTo) {
  Pack();
  const std::vector<std::string> run = {"run", "-m", packed_,     "--ids",  "1,2,3",
                                        "-n",  "5",  "--out-ids", "--check"};
  const auto sound = Program::Run(run);
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  FlipBit(dir_ / "packed" / "core.bin", 5000);
  const auto damaged = Program::Run(run);
  EXPECT_EQ(damaged.exit_code, 3);
  EXPECT_EQ(damaged.out, "");
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("core.bin"), HasSubstr("extent"), HasSubstr("weight")));
  const auto plain = Program::Run({"run", "-m", model_, "--ids", "1", "--check"});
  EXPECT_EQ(plain.exit_code, 2);
  EXPECT_THAT(plain.err, AllOf(HasSubstr("--check"), HasSubstr("thimble pack")));
}

TEST_F(PackCommandTest, ALossyContainerSaysSoEverywhere) {
  std::filesystem::create_directory(dir_ / "linear");
  CheckpointBuilder::KimiLinear().Write(dir_ / "linear");
  const std::string linear = dir_ / "linear";
  const auto pack =
      Program::Run({"pack", "-m", linear, "-o", packed_, "--experts", "mxfp4", "--trunk", "q8"});
  ASSERT_EQ(pack.exit_code, 0) << pack.err;
  EXPECT_THAT(pack.out, AllOf(HasSubstr("lossy: relative error"), HasSubstr("layer 1 "),
                              HasSubstr("in all ")));
  const std::string said = "lossy: experts quantised to mxfp4";
  EXPECT_THAT(Program::Run({"inspect", "-m", packed_}).out,
              AllOf(HasSubstr(said), HasSubstr("lossy: trunk quantised to q8")));
  EXPECT_THAT(Program::Run({"inspect", "-m", packed_, "--json"}).out,
              AllOf(HasSubstr("\"lossy\""), HasSubstr("\"part\": \"experts\"")));
  const std::vector<std::string> plan = {"plan", "-m", packed_, "--drive", "1", "-c", "16"};
  EXPECT_THAT(Program::Run(plan).out, HasSubstr(said));
  std::vector<std::string> plan_json = plan;
  plan_json.push_back("--json");
  EXPECT_THAT(Program::Run(plan_json).out, HasSubstr("\"part\": \"experts\""));
  const std::vector<std::string> run = {"run", "-m", packed_, "--ids", "1,2,3", "-n", "2"};
  EXPECT_THAT(Program::Run(run).err, Not(HasSubstr("lossy")));
  std::vector<std::string> verbose = run;
  verbose.push_back("-v");
  EXPECT_THAT(Program::Run(verbose).err, HasSubstr(said));
  EXPECT_THAT(Program::Run({"inspect", "-m", linear}).out, Not(HasSubstr("lossy")));
  EXPECT_EQ(Program::Run({"pack", "-m", linear, "-o", packed_, "--experts", "int3"}).exit_code, 2);
}

TEST_F(PackCommandTest, APackedModelIsPackedAgainWithOtherChoices) {
  Pack();
  const std::string raw = dir_ / "raw";
  const std::string q8 = dir_ / "q8";
  const std::string direct = dir_ / "direct";
  const auto pack = [](const std::string& from, const std::string& to, const std::string& choice) {
    std::vector<std::string> arguments = {"pack", "-m", from, "-o", to, choice};
    if (choice == "--trunk") arguments.emplace_back("q8");
    return Program::Run(arguments);
  };
  const auto run = [](const std::string& model) {
    return Program::Run({"run", "-m", model, "--ids", "1,2,3", "-n", "5", "--out-ids"}).out;
  };
  EXPECT_EQ(pack(packed_, raw, "--raw").exit_code, 0);
  EXPECT_EQ(run(raw), run(model_));
  EXPECT_THAT(pack(raw, q8, "--trunk").out, HasSubstr("lossy: relative error"));
  ASSERT_EQ(pack(model_, direct, "--trunk").exit_code, 0);
  EXPECT_TRUE(DirectoryBytes(q8) == DirectoryBytes(direct));
  const auto twice = pack(q8, dir_ / "twice", "--trunk");
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err, AllOf(HasSubstr(q8), HasSubstr("Q8 already")));
  const auto inside = pack(packed_, packed_ + "/raw", "--raw");
  EXPECT_EQ(inside.exit_code, 2);
  EXPECT_THAT(inside.err, HasSubstr("outside the model"));
  FlipBit(dir_ / "packed" / "core.bin", 5000);
  const auto damaged = pack(packed_, dir_ / "copy", "--raw");
  EXPECT_EQ(damaged.exit_code, 3);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("core.bin is damaged"), HasSubstr("checksum")));
}

TEST_F(PackCommandTest, WrongUsageIsExplained) {
  EXPECT_EQ(Program::Run({"pack", "-m", model_}).exit_code, 2);
  const auto taken = Program::Run({"pack", "-m", model_, "-o", model_});
  EXPECT_EQ(taken.exit_code, 2);
  EXPECT_THAT(taken.err, HasSubstr("a directory outside the model"));
  const auto unknown = Program::Run({"synth", "--arch", "k9", "-o", packed_});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("k9"), HasSubstr("kimi-k3")));
}

TEST_F(PackCommandTest, SynthMakesAModelThatRunsAndInspectSaysThatItIsSynthetic) {
  const auto synth =
      Program::Run({"synth", "--arch", "k3-small", "--layers", "5", "--distinct-layers", "1",
                    "--distinct-experts", "2", "--seed", "7", "-o", packed_});
  ASSERT_EQ(synth.exit_code, 0) << synth.err;
  EXPECT_THAT(Program::Run({"inspect", "-m", packed_}).out,
              AllOf(HasSubstr("synthetic: its 5 layers share 3"), HasSubstr("128 experts share 4"),
                    HasSubstr("source: synthetic k3-small seed 7")));
  const auto run = Program::Run({"run", "-m", packed_, "--ids", "1,2", "-n", "3"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

}  // namespace
}  // namespace thimble
