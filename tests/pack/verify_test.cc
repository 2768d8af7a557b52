#include "pack/verify.h"

#include <gtest/gtest.h>

#include <string>

#include "format/published_hash.h"
#include "pack/pack.h"
#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

// A download with the notes that the hub's tools leave beside it.
class VerifyTest : public testing::Test {
 protected:
  VerifyTest() {
    std::filesystem::create_directories(model_);
    builder_.Write(model_);
    std::filesystem::create_directories(notes_);
    for (const auto& entry : std::filesystem::directory_iterator(model_)) {
      if (!entry.is_regular_file()) continue;
      const bool large = entry.path().extension() == ".safetensors";
      const std::string bytes = ReadBytes(entry.path());
      FileHasher hasher(large ? PublishedHash::Kind::kSha256 : PublishedHash::Kind::kGitBlob,
                        bytes.size());
      hasher.Update(std::as_bytes(std::span(bytes)));
      WriteText(notes_ / (entry.path().filename().string() + ".metadata"),
                "0\n" + hasher.Finish() + "\n1.0\n");
    }
  }

  std::filesystem::path Shard(size_t shard) const { return model_ / builder_.ShardName(shard); }
  // Other bytes of the same size, where no header shows it.
  void Spoil(const std::filesystem::path& path) const {
    Overwrite(path, std::filesystem::file_size(path) - 1, "\x5a");
  }

  TempDir dir_;
  std::filesystem::path model_ = dir_ / "model";
  std::filesystem::path notes_ = model_ / ".cache/huggingface/download";
  CheckpointBuilder builder_ = CheckpointBuilder::KimiLinear();
};

TEST_F(VerifyTest, ComparesWithThePublishedHashes) {
  const VerifyReport report = VerifyModel(model_, nullptr);
  EXPECT_EQ(report.num_damaged, 0) << report.damages.front();
  EXPECT_GT(report.num_checked, 1);
  EXPECT_EQ(report.num_hashed, report.num_checked);
}

TEST_F(VerifyTest, FindsBytesThatOnlyTheHashShows) {
  Spoil(Shard(1));
  const VerifyReport report = VerifyModel(model_, nullptr);
  ASSERT_EQ(report.num_damaged, 1);
  EXPECT_THAT(report.damages[0], testing::HasSubstr(Shard(1).string() + ": expected the SHA-256"));
}

TEST_F(VerifyTest, FindsASmallFileThatWasChanged) {
  WriteText(model_ / "config.json", ReadBytes(model_ / "config.json") + "\n");
  const VerifyReport report = VerifyModel(model_, nullptr);
  ASSERT_EQ(report.num_damaged, 1);
  EXPECT_THAT(report.damages[0], testing::HasSubstr("config.json: expected the git hash"));
}

TEST_F(VerifyTest, WithoutHashesSaysSo) {
  std::filesystem::remove_all(notes_);
  Spoil(Shard(1));
  const VerifyReport report = VerifyModel(model_, nullptr);
  EXPECT_EQ(report.num_damaged, 0);
  EXPECT_EQ(report.num_hashed, 0);
}

TEST_F(VerifyTest, PackRefusesADamagedShardAndLeavesNothing) {
  Spoil(Shard(1));
  ExpectBadModel({Shard(1).string(), "expected the SHA-256"},
                 [&] { PackModel(model_, {dir_ / "deep/packed"}, {}, nullptr); });
  EXPECT_FALSE(std::filesystem::exists(dir_ / "deep"));
}

TEST_F(VerifyTest, PackWithoutRoomLeavesNothing) {
  WriteOptions options;
  options.free_disk_bytes = [](const std::filesystem::path&) { return uint64_t{0}; };
  ExpectError(ErrorCode::kRuntime, {"make room"}, [&] {
    PackModel(model_, {dir_ / "deep/packed", dir_ / "other"}, options, nullptr);
  });
  EXPECT_FALSE(std::filesystem::exists(dir_ / "deep"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "other"));
  std::filesystem::create_directories(dir_ / "given");
  ExpectError(ErrorCode::kRuntime, {"make room"},
              [&] { PackModel(model_, {dir_ / "given"}, options, nullptr); });
  EXPECT_TRUE(std::filesystem::exists(dir_ / "given"));
}

}  // namespace
}  // namespace thimble
