#include "format/download.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "format/tensor_store.h"
#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using State = DownloadedFile::State;
using testing::HasSubstr;

void SetIdle(const std::filesystem::path& path, std::chrono::seconds idle) {
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - idle);
}

// Six shards, of which each test spoils some.
class DownloadTest : public testing::Test {
 protected:
  DownloadTest() {
    builder_.Write(dir_.path());
    for (size_t i = 0; std::filesystem::exists(Shard(i)); ++i) names_.push_back(Name(i));
  }

  std::string Name(size_t shard) const { return builder_.ShardName(shard); }
  std::filesystem::path Shard(size_t shard) const { return dir_ / Name(shard); }
  DownloadState Examine() const { return ExamineDownload(dir_.path(), names_); }

  TempDir dir_;
  CheckpointBuilder builder_ = CheckpointBuilder::KimiK3();
  std::vector<std::string> names_;
};

TEST_F(DownloadTest, OfAWholeModelIsComplete) {
  const DownloadState state = Examine();
  EXPECT_TRUE(state.is_complete());
  EXPECT_FALSE(state.is_running());
  EXPECT_EQ(state.Count(State::kWhole), names_.size());
}

TEST_F(DownloadTest, CountsCutMissingAndForeignShards) {
  Truncate(Shard(0), 1);
  WriteText(Shard(1), std::string(3, 'x'));
  WriteText(Shard(2), "");
  std::filesystem::remove(Shard(3));
  std::filesystem::remove(Shard(4));
  WriteText(Shard(5), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4000\n");
  const DownloadState state = Examine();
  EXPECT_FALSE(state.is_complete());
  EXPECT_EQ(state.Count(State::kCut), 3);
  EXPECT_EQ(state.Count(State::kMissing), 2);
  EXPECT_EQ(state.Count(State::kForeign), 1);
  EXPECT_EQ(state.shards[0].expected_bytes, state.shards[0].bytes + 1);
  const std::string text = DescribeDownload(state);
  EXPECT_THAT(text, HasSubstr("of " + std::to_string(names_.size()) + " shards are whole"));
  EXPECT_THAT(text, HasSubstr("cut: " + Name(0)));
  EXPECT_THAT(text, HasSubstr("missing: " + Name(3) + ", " + Name(4)));
  EXPECT_THAT(text, HasSubstr("Git LFS pointer to a file of 4.00 kB"));
  EXPECT_THAT(state.next, HasSubstr("lfs pull"));
}

TEST_F(DownloadTest, OpeningItDescribesItWhole) {
  std::filesystem::remove(Shard(0));
  Truncate(Shard(5), 10);
  const ModelConfig config = ReadModelConfig(dir_.path());
  ExpectBadModel({dir_.path().string(), "the download is not complete", "cut: " + Name(5),
                  "missing: " + Name(0), "run the download again"},
                 [&] { TensorStore::Open(dir_.path(), config); });
}

TEST_F(DownloadTest, DamageIsNoMatterOfTheDownload) {
  EditHeader(Shard(1), [](std::string header) { return header.replace(0, 1, "["); });
  EXPECT_TRUE(Examine().is_complete());
  ExpectBadModel({Shard(1).string(), "starts with '{'"},
                 [&] { TensorStore::Open(dir_.path(), ReadModelConfig(dir_.path())); });
}

TEST_F(DownloadTest, SpaceThatWasOnlyReservedIsNotWhole) {
  builder_.FindTensor("language_model.lm_head.weight").bytes.assign(64 << 10, '\0');
  const size_t last = names_.size() - 1;
  const std::string head = CheckpointBuilder::SafetensorsHead(
      R"({"language_model.lm_head.weight":{"dtype":"BF16","shape":[32768],"data_offsets":[0,65536]}})");
  WriteText(Shard(last), head + std::string(65536, '\0'));
  EXPECT_EQ(Examine().shards[last].state, State::kUnwritten);
  WriteText(Shard(last), head + std::string(65535, '\0') + "x");
  EXPECT_EQ(Examine().shards[last].state, State::kWhole);
  WriteText(Shard(last).string() + ".aria2", "notes");
  const DownloadState state = Examine();
  EXPECT_EQ(state.shards[last].state, State::kUnwritten);
  EXPECT_THAT(DescribeDownload(state), HasSubstr("not written to the end: " + Name(last)));
  EXPECT_TRUE(state.is_running());
}

TEST_F(DownloadTest, TellsWhetherAnotherProgramIsWriting) {
  std::filesystem::remove(Shard(2));
  const std::filesystem::path notes = dir_ / ".cache" / "huggingface" / "download";
  std::filesystem::create_directories(notes);
  const std::filesystem::path part = notes / "abc.incomplete";
  WriteText(part, "12345");
  SetIdle(part, std::chrono::seconds(5));
  DownloadState state = Examine();
  EXPECT_TRUE(state.is_running());
  EXPECT_THAT(DescribeDownload(state), HasSubstr("another program is writing: abc.incomplete"));
  EXPECT_THAT(state.next, HasSubstr("wait"));
  SetIdle(part, std::chrono::hours(5));
  state = Examine();
  EXPECT_FALSE(state.is_running());
  EXPECT_THAT(DescribeDownload(state), HasSubstr("left unfinished: abc.incomplete"));
  EXPECT_THAT(state.next, HasSubstr("hf download"));
}

TEST(CompressNamesTest, JoinsNeighbours) {
  const std::vector<std::string> all = {"a", "b", "c", "d", "e", "f"};
  EXPECT_EQ(CompressNames({}, all), "");
  EXPECT_EQ(CompressNames({"a", "c", "d"}, all), "a, c, d");
  EXPECT_EQ(CompressNames({"a", "b", "c", "f"}, all), "a to c (3), f");
  EXPECT_EQ(CompressNames(all, all), "a to f (6)");
}

}  // namespace
}  // namespace thimble
