#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/byte_size.h"
#include "cli/program.h"
#include "support/checkpoint_builder.h"
#include "support/file_edit.h"
#include "support/sanitizers.h"
#include "support/shared_data.h"
#include "support/small_ranks.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr int kFine = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kBadModel = 3;
constexpr int kOverBudget = 4;
constexpr int kInterrupted = 130;

const std::string kFixture = THIMBLE_SOURCE_DIR "/tests/fixtures/k3-small";

// A small model of random weights with a tokenizer of single bytes.
class CommandTest : public ::testing::Test {
 protected:
  CommandTest() {
    CheckpointDims dims;
    dims.vocab = 512;
    dims.max_context = 100000;
    CheckpointBuilder::KimiK3(dims).Write(model());
    WriteText(model() / "tiktoken.model", SmallRankFile({}));
  }

  std::filesystem::path model() const {
    std::filesystem::create_directory(dir_ / "model");
    return dir_ / "model";
  }

  Program::Result Run(std::vector<std::string> arguments, const std::string& input = {}) const {
    arguments.insert(arguments.begin() + 1, {"-m", model().string()});
    return Program::Run(arguments, input);
  }

  static Json ReadJson(const std::filesystem::path& path) {
    std::ifstream file(path);
    return Json::parse(file);
  }

  TempDir dir_;
};

void ExpectFailure(const Program::Result& result, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, StartsWith("thimble: "));
  for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
}

// ---- usage

TEST_F(CommandTest, VersionNamesTheSimdTarget) {
  const auto result = Program::Run({"--version"});
  EXPECT_EQ(result.exit_code, kFine);
  EXPECT_THAT(result.out, AllOf(StartsWith("thimble "), HasSubstr("(")));
}

TEST_F(CommandTest, HelpGoesToStandardOutput) {
  for (const char* command :
       {"run", "inspect", "tokenize", "detokenize", "eval", "plan", "doctor"}) {
    EXPECT_THAT(Program::Run({"--help"}).out, HasSubstr(command));
    const auto result = Program::Run({command, "--help"});
    EXPECT_EQ(result.exit_code, kFine);
    EXPECT_THAT(result.out, HasSubstr("--model"));
  }
}

TEST_F(CommandTest, WrongUsageIsExplained) {
  ExpectFailure(Program::Run({}), kUsage, {"--help"});
  ExpectFailure(Program::Run({"dance"}), kUsage, {"--help"});
  ExpectFailure(Run({"run", "-p", "a", "--fast"}), kUsage, {"--fast"});
  ExpectFailure(Run({"run"}), kUsage, {"exactly one of -p, -f and --ids"});
  ExpectFailure(Run({"run", "-p", "a", "--ids", "1"}), kUsage, {"exactly one"});
  ExpectFailure(Run({"run", "-p", ""}), kUsage, {"--prompt", "empty"});
  ExpectFailure(Run({"run", "--ids", "1,512"}), kUsage, {"token id 512", "0 to 511"});
  ExpectFailure(Run({"run", "--ids", "1,x"}), kUsage, {"x"});
  ExpectFailure(Run({"run", "-p", "a", "--memory", "plenty"}), kUsage, {"1.5G", "plenty"});
  ExpectFailure(Run({"run", "-p", "a", "-t", "0"}), kUsage, {"threads"});
  ExpectFailure(Run({"run", "-p", "a", "--io", "fast"}), kUsage, {"--io", "direct", "fast"});
  ExpectFailure(Run({"run", "-p", "a", "--temp", "-1"}), kUsage, {"--temp"});
  ExpectFailure(Run({"run", "-p", "abcdef", "-c", "3"}), kUsage, {"6 tokens", "raise -c"});
  ExpectFailure(Run({"run", "-p", "a", "-c", "100001"}), kUsage, {"100000 tokens"});
}

// ---- run

TEST_F(CommandTest, RunPrintsTextAndOnlyText) {
  const auto result = Run({"run", "-p", "In the", "-n", "20", "--temp", "1", "-s", "5"});
  EXPECT_EQ(result.exit_code, kFine);
  EXPECT_THAT(result.out, Not(IsEmpty()));
  EXPECT_THAT(result.out, Not(HasSubstr("In the")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("prompt 6 tokens"), HasSubstr("generated 20")));
}

TEST_F(CommandTest, VerboseEndsWithWhatMemoryWasFor) {
  const auto quiet = Run({"run", "-p", "In the", "-n", "3"});
  const auto verbose = Run({"run", "-p", "In the", "-n", "3", "--verbose"});
  EXPECT_EQ(verbose.out, quiet.out);
  EXPECT_THAT(quiet.err, Not(HasSubstr("memory by use")));
  EXPECT_THAT(verbose.err, AllOf(HasSubstr("memory by use"), HasSubstr("session state"),
                                 HasSubstr("experts "), Not(HasSubstr("\033"))));
}

TEST_F(CommandTest, PromptsFromOptionFileAndStandardInputAreTheSame) {
  WriteText(dir_ / "prompt", "In the\nbeginning");
  const auto from_option = Run({"run", "-p", "In the\nbeginning", "-n", "9", "--out-ids"});
  const auto from_file = Run({"run", "-f", (dir_ / "prompt").string(), "-n", "9", "--out-ids"});
  const auto from_input = Run({"run", "-f", "-", "-n", "9", "--out-ids"}, "In the\nbeginning");
  EXPECT_EQ(from_option.exit_code, kFine);
  EXPECT_EQ(from_file.out, from_option.out);
  EXPECT_EQ(from_input.out, from_option.out);
}

TEST_F(CommandTest, OutIdsFeedBackAsIds) {
  const auto all = Run({"run", "--ids", "1,2,3", "-n", "6", "--out-ids"});
  const auto first = Run({"run", "--ids", "1,2,3", "-n", "2", "--out-ids"});
  std::string ids = first.out;
  ids.pop_back();
  const auto rest = Run({"run", "--ids", "1,2,3," + ids, "-n", "4", "--out-ids"});
  EXPECT_EQ(ids + "," + rest.out, all.out);
}

TEST_F(CommandTest, StatsHoldEveryFigure) {
  const auto stats_file = dir_ / "stats.json";
  const auto result = Run({"run", "--ids", "1,2,3", "-n", "4", "--out-ids", "--memory", "1G",
                           "--stats", stats_file.string()});
  ASSERT_EQ(result.exit_code, kFine) << result.err;
  const Json stats = ReadJson(stats_file);
  for (const char* name : {"prompt_tokens",    "generated_tokens",     "prefill_s",
                           "decode_s",         "prefill_tokens_per_s", "decode_tokens_per_s",
                           "peak_rss_bytes",   "budget_bytes",         "read_bytes",
                           "trunk_read_bytes", "expert_read_bytes",    "expert_requests",
                           "expert_hits",      "major_faults",         "minor_faults",
                           "page_table_bytes", "locked_bytes",         "unlocked_bytes",
                           "io_wait_s",        "io_bound_s",           "compute_bound_s",
                           "threads"}) {
    ASSERT_TRUE(stats.contains(name)) << name;
    EXPECT_TRUE(stats[name].is_number()) << name;
  }
  EXPECT_EQ(stats["prompt_tokens"], 3);
  EXPECT_EQ(stats["generated_tokens"], 4);
  EXPECT_EQ(stats["budget_bytes"], 1000000000);
  EXPECT_EQ(stats["ids"].size(), 4U);
  EXPECT_TRUE(stats["simd"].is_string());
  EXPECT_EQ(stats["io"], "pread, buffered, depth 4 x 4 MiB");
  EXPECT_EQ(stats["read_bytes"].get<uint64_t>(),
            stats["trunk_read_bytes"].get<uint64_t>() + stats["expert_read_bytes"].get<uint64_t>());
  uint64_t ledger = 0;
  for (const auto& [name, bytes] : stats["budget_ledger"].items()) ledger += bytes.get<uint64_t>();
  EXPECT_LE(ledger, 1000000000U);
  EXPECT_GT(ledger, 0U);
  std::string ids;
  for (const Json& id : stats["ids"]) ids += (ids.empty() ? "" : ",") + id.dump();
  EXPECT_EQ(result.out, ids + "\n");
}

TEST_F(CommandTest, DriveAndCoresShareTheTimeOfTheRun) {
  const auto stats_file = dir_ / "stats.json";
  const auto result = Run({"run", "--ids", "1,2,3", "-n", "200", "--out-ids", "--verbose",
                           "--stats", stats_file.string()});
  ASSERT_EQ(result.exit_code, kFine) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("the drive set the pace for "), HasSubstr("the cores for")));
  const Json stats = ReadJson(stats_file);
  const double io = stats["io_bound_s"], compute = stats["compute_bound_s"];
  const double run = stats["prefill_s"].get<double>() + stats["decode_s"].get<double>();
  EXPECT_GT(compute, 0);
  EXPECT_LE(io, stats["io_wait_s"]);
  EXPECT_LE(io + compute, run);
  EXPECT_GE(io + compute, 0.9 * run);  // the rest is sampling and printing
}

TEST_F(CommandTest, ReadsAsToldAndSaysSo) {
  const auto stats_file = dir_ / "stats.json";
  std::string expected;
  for (const std::string mode : {"auto", "buffered", "direct", "mmap"}) {
    const auto result = Run({"run", "--ids", "1,2,3", "-n", "4", "--out-ids", "--io", mode,
                             "--stats", stats_file.string()});
    ASSERT_EQ(result.exit_code, kFine) << result.err;
    if (expected.empty()) expected = result.out;
    EXPECT_EQ(result.out, expected) << mode;
    const auto io = ReadJson(stats_file)["io"].get<std::string>();
    EXPECT_NE(result.err.find("(" + io + ")"), std::string::npos) << result.err;
    // Direct where the kernel and the file system of the tests' folder can do that.
    if (mode == "mmap") {
      EXPECT_EQ(io, "mmap, depth 4 x 4 MiB");
    } else if (mode != "direct") {
      EXPECT_NE(io.find("buffered"), std::string::npos) << io;
    }
  }
}

TEST_F(CommandTest, ANarrowCacheTakesLessOfTheLedger) {
  const auto stats_file = dir_ / "stats.json";
  std::map<std::string, uint64_t> state;
  for (const std::string kv : {"f32", "bf16", "fp8"}) {
    const auto result = Run({"run", "--ids", "1,2,3", "-n", "4", "--out-ids", "-c", "2000", "--kv",
                             kv, "--stats", stats_file.string()});
    ASSERT_EQ(result.exit_code, kFine) << result.err;
    const Json stats = ReadJson(stats_file);
    EXPECT_EQ(stats["kv"], kv);
    state[kv] = stats["budget_ledger"]["session state"];
  }
  EXPECT_GT(state["f32"], state["bf16"]);
  EXPECT_GT(state["bf16"], state["fp8"]);
  ExpectFailure(Run({"run", "--ids", "1", "--kv", "int4"}), kUsage, {"--kv", "bf16", "int4"});
}

TEST_F(CommandTest, LogitsAreWrittenForEveryPromptPosition) {
  std::string first;
  for (const char* chunk : {"1", "2", "512"}) {
    for (const char* threads : {"1", "2"}) {
      const auto file = dir_ / "logits";
      const auto result = Run({"run", "--ids", "5,6,7", "-n", "0", "--logits", file.string(),
                               "--prefill-chunk", chunk, "-t", threads});
      ASSERT_EQ(result.exit_code, kFine) << result.err;
      EXPECT_THAT(result.out, IsEmpty());
      std::ifstream stream(file, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
      EXPECT_EQ(bytes.size(), 3U * 512 * 4);
      if (first.empty()) first = bytes;
      EXPECT_TRUE(bytes == first) << "chunk " << chunk << ", threads " << threads;
    }
  }
}

TEST_F(CommandTest, OutputThatCannotBeWrittenIsAnErrorAndLeavesNothing) {
  const auto missing = dir_ / "missing" / "logits";
  ExpectFailure(Run({"run", "--ids", "5", "-n", "0", "--logits", missing.string()}), kFailed,
                {missing.string(), "No such file"});
  const auto full = Program::Run(
      {"run", "-m", model().string(), "--ids", "5", "-n", "3", "--out-ids"}, {}, "/dev/full");
  EXPECT_EQ(full.exit_code, kFailed);
  EXPECT_THAT(full.err, HasSubstr("No space left"));
}

TEST_F(CommandTest, CtrlCEndsWithTheReportAndCode130) {
  const auto stats_file = dir_ / "stats.json";
  Program program({"run", "-m", model().string(), "--ids", "1,2,3", "-n", "90000", "--out-ids",
                   "--stats", stats_file.string()});
  while (program.OutSoFar().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  program.Signal(SIGINT);
  const auto result = program.Wait();
  EXPECT_EQ(result.exit_code, kInterrupted) << result.err;
  EXPECT_THAT(result.err, HasSubstr("generated"));
  EXPECT_GT(ReadJson(stats_file)["generated_tokens"], 0);
}

TEST_F(CommandTest, TooSmallABudgetNamesTheSmallestAndThatOneWorks) {
  const auto refused = Run({"run", "-p", "In the", "-n", "5", "--memory", "1M"});
  ExpectFailure(refused, kOverBudget, {"the least that works is --memory ", "session state", "-c"});
  const std::string mark = "--memory ";
  const size_t at = refused.err.find(mark) + mark.size();
  const std::string least = refused.err.substr(at, refused.err.find(':', at) - at);
  const auto granted = Run({"run", "-p", "In the", "-n", "5", "--memory", least});
  EXPECT_EQ(granted.exit_code, kFine) << granted.err;
}

// The promise: the kernel's own figure for the whole process, under every budget, and the same
// text.
TEST_F(CommandTest, PeakMemoryStaysUnderTheBudget) {
  if (kSanitized) GTEST_SKIP() << "sanitizers hold memory of their own";
  std::string expected;
  for (const std::string mode : {"auto", "direct", "mmap"}) {
    for (const char* budget : {"24M", "26M", "30M", "40M", "1G"}) {
      SCOPED_TRACE(mode + " " + budget);
      const auto stats_file = dir_ / "stats.json";
      const auto result = Program::Run({"run", "-m", kFixture, "--ids", "11,12,13,14,15,16,17",
                                        "-n", "40", "--out-ids", "--memory", budget, "--io", mode,
                                        "--preload", "--stats", stats_file.string()});
      ASSERT_EQ(result.exit_code, kFine) << result.err;
      const Json stats = ReadJson(stats_file);
      uint64_t peak = stats["peak_rss_bytes"].get<uint64_t>();
      if (mode == "mmap") peak += stats["page_table_bytes"].get<uint64_t>();
      EXPECT_LT(peak, ParseByteSize(budget).value());
      if (expected.empty()) expected = result.out;
      EXPECT_EQ(result.out, expected);
    }
  }
}

// ---- models that cannot be run

TEST_F(CommandTest, BadModelsAreNamedWithTheReason) {
  const auto run = [&] { return Run({"run", "-p", "a", "-n", "1"}); };
  ExpectFailure(Program::Run({"run", "-m", (dir_ / "nowhere").string(), "-p", "a"}), kBadModel,
                {"nowhere"});
  const auto shard = model() / "model-00002-of-000006.safetensors";
  const auto size = std::filesystem::file_size(shard);
  std::filesystem::resize_file(shard, size - 1);
  ExpectFailure(
      run(), kBadModel,
      {shard.filename().string(), std::to_string(size), std::to_string(size - 1), "ownload"});
  std::filesystem::remove(shard);
  ExpectFailure(run(), kBadModel, {shard.filename().string(), "ownload"});
  WriteText(model() / "config.json", R"({"model_type": "llama"})");
  ExpectFailure(run(), kBadModel, {"config.json", "model_type", "llama"});
  WriteText(model() / "config.json", "{");
  ExpectFailure(run(), kBadModel, {"config.json"});
}

TEST_F(CommandTest, TextNeedsATokenizer) {
  std::filesystem::remove(model() / "tiktoken.model");
  ExpectFailure(Run({"run", "-p", "a"}), kBadModel, {"tiktoken.model", "--ids"});
  const auto result = Run({"run", "--ids", "1,2", "-n", "3"});
  EXPECT_EQ(result.exit_code, kFine);
  EXPECT_THAT(result.out, HasSubstr(","));
}

// ---- tokenize, detokenize

TEST_F(CommandTest, TokenizeAndDetokenizeAreInverse) {
  const std::string text = "A text,\nwith \xc3\xa9 and \xff.";
  const auto ids = Run({"tokenize"}, text);
  EXPECT_EQ(ids.exit_code, kFine);
  EXPECT_THAT(ids.out, StartsWith("65,32,116"));
  EXPECT_EQ(Run({"detokenize"}, ids.out).out, text);
}

TEST_F(CommandTest, JsonLinesGoBothWays) {
  const std::string lines = "\"ab\"\n\"\\u00e9\\n\"\n\"\"\n";
  const auto ids = Run({"tokenize", "--jsonl"}, lines);
  EXPECT_EQ(ids.out, "[97,98]\n[195,169,10]\n[]\n");
  EXPECT_EQ(Run({"detokenize", "--jsonl"}, ids.out).out, "\"ab\"\n\"\xc3\xa9\\n\"\n\"\"\n");
  ExpectFailure(Run({"tokenize", "--jsonl"}, "[1]\n"), kUsage, {"line 1", "JSON string"});
}

TEST_F(CommandTest, MarkupIsRecognisedOnlyWhereAskedFor) {
  const std::string text = "<|reserved_token_300|>";
  EXPECT_EQ(Run({"tokenize", "--markup"}, text).out, "300\n");
  EXPECT_THAT(Run({"tokenize"}, text).out, StartsWith("60,124,"));
}

TEST_F(CommandTest, IdsThatAreNoneAreRefused) {
  ExpectFailure(Run({"detokenize"}, "1,two"), kUsage, {"two"});
  ExpectFailure(Run({"detokenize"}, "512"), kUsage, {"512"});
}

// ---- inspect, eval

TEST_F(CommandTest, InspectShowsAndChecksTheModel) {
  const auto text = Run({"inspect"});
  EXPECT_EQ(text.exit_code, kFine);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("Kimi K3"), HasSubstr("5 layers"), HasSubstr("routed experts")));
  const Json json = Json::parse(Run({"inspect", "--json"}).out);
  EXPECT_EQ(json["layers"], 5);
  EXPECT_EQ(json["kda_layers"].get<int>() + json["mla_layers"].get<int>(), 5);
  uint64_t sum = 0;
  for (const auto& [name, part] : json["parts"].items()) sum += part["parameters"].get<uint64_t>();
  EXPECT_EQ(sum, json["total_parameters"]);
}

TEST_F(CommandTest, InspectKnowsTheRealModelFromItsIndexAlone) {
  THIMBLE_NEED_SHARED("data/kimi-k3/model.safetensors.index.json.gz");
  const auto data = SharedDir() / "data/kimi-k3";
  std::filesystem::copy(data / "config.json", dir_ / "config.json");
  const std::string unpack = "gzip -dc '" + (data / "model.safetensors.index.json.gz").string() +
                             "' > '" + (dir_ / "model.safetensors.index.json").string() + "'";
  ASSERT_EQ(std::system(unpack.c_str()), 0);
  const auto result = Program::Run({"inspect", "-m", dir_.path().string()});
  EXPECT_EQ(result.exit_code, kFine) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("2.78 T parameters"), HasSubstr("497220 tensors"),
                                HasSubstr("96 shards"), HasSubstr("69 KDA and 24 MLA")));
}

TEST_F(CommandTest, EvalPrintsBitsPerByte) {
  WriteText(dir_ / "text", "In the beginning God created the heaven and the earth.");
  const Json json =
      Json::parse(Run({"eval", "-f", (dir_ / "text").string(), "-c", "16", "--json"}).out);
  EXPECT_EQ(json["tokens"], 53);
  EXPECT_EQ(json["bytes"], 53);
  // Tokens are bytes here, so the two figures say the same.
  EXPECT_NEAR(json["bits_per_byte"].get<double>(),
              std::log2(json["perplexity_per_token"].get<double>()), 1e-9);
  ExpectFailure(Run({"eval", "-f", (dir_ / "missing").string()}), kUsage, {"missing"});
}

}  // namespace
}  // namespace thimble
