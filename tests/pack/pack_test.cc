#include "pack/pack.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <vector>

#include "engine/engine.h"
#include "format/container.h"
#include "pack/verify.h"
#include "support/all_logits.h"
#include "support/checkpoint_builder.h"
#include "support/directory_bytes.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using Files = std::map<std::string, std::string>;

// Small steps, so that there are many places to be killed at.
WriteOptions SmallSteps() {
  WriteOptions options;
  options.chunk_bytes = 4096;
  options.sync_bytes = 65536;
  return options;
}

std::vector<float> LogitsOf(const std::filesystem::path& dir, const EngineOptions& options = {}) {
  const ModelDirectory model = ModelDirectory::Open(dir);
  const std::vector<TokenId> tokens = {1, 2, 3, 50, 7, 7, 90};
  return AllLogits(model, options, tokens);
}

void ExpectSameLogits(const std::filesystem::path& a, const std::filesystem::path& b) {
  const std::vector<float> first = LogitsOf(a);
  const std::vector<float> second = LogitsOf(b);
  ASSERT_EQ(first.size(), second.size());
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
}

class PackTest : public ::testing::Test {
 protected:
  PackTest() {
    std::filesystem::create_directory(model());
    CheckpointBuilder::KimiK3().Write(model());
    WriteText(model() / "README.md", "about");
  }

  std::filesystem::path model() const { return dir_ / "model"; }
  std::filesystem::path packed() const { return dir_ / "packed"; }
  PackResult Pack(const WriteOptions& options = {}) {
    return PackModel(model(), {packed()}, options, nullptr);
  }
  void ExpectDamage(const std::vector<std::string>& parts) {
    const VerifyReport report = VerifyModel(packed(), nullptr);
    ASSERT_EQ(report.num_damaged, 1U);
    for (const std::string& part : parts) {
      EXPECT_THAT(report.damages[0], testing::HasSubstr(part));
    }
  }

  TempDir dir_;
};

TEST_F(PackTest, LogitsAreThoseOfTheSnapshotToTheBit) {
  const PackResult result = Pack();
  EXPECT_EQ(result.outcome, WriteOutcome::kWritten);
  EXPECT_EQ(result.files, 5U);  // the core and four MoE layers
  ExpectSameLogits(model(), packed());
  EXPECT_EQ(ReadBytes(packed() / "README.md"), "about");
}

TEST_F(PackTest, LogitsAreTheSameForTheOtherArchitecture) {
  const auto linear = dir_ / "linear";
  std::filesystem::create_directory(linear);
  CheckpointBuilder::KimiLinear().Write(linear);
  PackModel(linear, {packed()}, {}, nullptr);
  ExpectSameLogits(linear, packed());
}

// ---- checks while running

EngineOptions Checked() {
  EngineOptions options;
  options.check = true;
  return options;
}

TEST_F(PackTest, ACheckedRunOfASoundModelGivesTheSameLogits) {
  Pack();
  const std::vector<float> expected = LogitsOf(packed());
  for (const ReadMode mode : {ReadMode::kBuffered, ReadMode::kDirect, ReadMode::kMapped}) {
    for (const bool preload : {false, true}) {
      EngineOptions options = Checked();
      options.read_mode = mode;
      options.preload = preload;
      uint64_t told = 0;
      options.on_load = [&](const char*, uint64_t done, uint64_t) { told = std::max(told, done); };
      EXPECT_TRUE(LogitsOf(packed(), options) == expected);
      EXPECT_GT(told, 0U);
    }
  }
}

TEST_F(PackTest, ACheckedRunNamesADamagedTensor) {
  Pack();
  const uint64_t size = std::filesystem::file_size(packed() / "core.bin");
  for (const uint64_t offset : {uint64_t{3}, size / 2, size - 4096}) {
    FlipBit(packed() / "core.bin", offset);
    ExpectBadModel({(packed() / "core.bin").string(), "is damaged", "extent ", "checksum"},
                   [&] { LogitsOf(packed(), Checked()); });
    FlipBit(packed() / "core.bin", offset);
  }
  EXPECT_EQ(LogitsOf(packed(), Checked()).size(), LogitsOf(packed()).size());
}

// Where all of a layer's experts are damaged, whichever is asked for first is named.
TEST_F(PackTest, ACheckedRunNamesADamagedExpertBeforeItIsUsed) {
  Pack();
  const auto file = packed() / "experts-001.bin";
  const Container container = OpenContainer(packed(), ReadModelConfig(packed()));
  for (size_t i = 0; i < container.table.extents.size(); ++i) {
    const ExtentUse& use = container.uses[i];
    if (use.kind != ExtentUse::Kind::kExpert || use.layer != 1) continue;
    FlipBit(file, container.table.extents[i].offset + container.table.extents[i].bytes - 1);
  }
  for (const bool preload : {false, true}) {
    EngineOptions options = Checked();
    options.preload = preload;
    ExpectBadModel({file.string(), "is damaged", "layer 1, expert "},
                   [&] { LogitsOf(packed(), options); });
  }
}

TEST_F(PackTest, ASnapshotHasNothingToCheckWith) {
  ExpectError(ErrorCode::kUsage, {"--check", model().string(), "none", "thimble pack"},
              [&] { LogitsOf(model(), Checked()); });
}

TEST_F(PackTest, SessionsFitBothTheSnapshotAndThePackedModel) {
  Pack();
  const auto fingerprint = [](const std::filesystem::path& dir) {
    const ModelDirectory model = ModelDirectory::Open(dir);
    EngineOptions options;
    options.context = 8;
    return Engine::Open(model, options)->Fingerprint();
  };
  EXPECT_EQ(fingerprint(model()), fingerprint(packed()));
}

TEST_F(PackTest, RawStoresTensorsAsTheyWere) {
  const PackResult coded = Pack();
  WriteOptions options;
  options.raw = true;
  const auto raw = dir_ / "raw";
  const PackResult plain = PackModel(model(), {raw}, options, nullptr);
  EXPECT_EQ(plain.bytes, plain.plain_bytes);
  EXPECT_LT(coded.bytes, plain.bytes);
  EXPECT_EQ(coded.plain_bytes, PackModel(model(), {packed()}, {}, nullptr).plain_bytes);
  ExpectSameLogits(packed(), raw);
}

TEST_F(PackTest, ADamagedHeadOfACodedGroupIsOneErrorThatNamesIt) {
  Pack();
  const Container container = OpenContainer(packed(), ReadModelConfig(packed()));
  size_t coded = 0;
  while (TensorOf(container.uses[coded], container.manifest)->group_rows == 0) ++coded;
  FlipBit(packed() / kCoreFile, container.table.extents[coded].offset + 2);
  ExpectError(ErrorCode::kBadModel,
              {"core.bin", std::to_string(container.table.extents[coded].offset), "verify"},
              [&] { LogitsOf(packed()); });
}

TEST_F(PackTest, StepsDoNotShowInTheResult) {
  Pack();
  const auto other = dir_ / "other";
  PackModel(model(), {other}, SmallSteps(), nullptr);
  EXPECT_TRUE(DirectoryBytes(packed()) == DirectoryBytes(other));
}

// Packs in a child process that is killed at step `n`. False where it got to the end before.
bool PackAndDie(const std::filesystem::path& model, const std::filesystem::path& to, size_t n) {
  const pid_t child = ::fork();
  if (child == 0) {
    WriteOptions options = SmallSteps();
    size_t step = 0;
    options.on_step = [&] {
      if (++step == n) ::raise(SIGKILL);
    };
    try {
      PackModel(model, {to}, options, nullptr);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

TEST_F(PackTest, KilledAtAnyStepItGoesOnAndTheFilesAreTheSame) {
  Pack();
  const Files expected = DirectoryBytes(packed());
  const auto to = dir_ / "killed";
  size_t deaths = 0;
  for (size_t n = 1;; n += 1 + n / 2) {
    std::filesystem::remove_all(to);
    if (!PackAndDie(model(), to, n)) break;
    ++deaths;
    PackModel(model(), {to}, SmallSteps(), nullptr);
    ASSERT_TRUE(DirectoryBytes(to) == expected) << "killed at step " << n;
  }
  EXPECT_GT(deaths, 8U);
}

TEST_F(PackTest, KilledAgainAndAgainItStillEnds) {
  Pack();
  const auto to = dir_ / "killed";
  // Enough steps to read the largest file back, which starts anew each time.
  const size_t steps = 60 + std::filesystem::file_size(packed() / "core.bin") / 4096;
  size_t deaths = 0;
  while (PackAndDie(model(), to, steps)) ASSERT_LT(++deaths, 100U);
  EXPECT_GT(deaths, 2U);
  EXPECT_TRUE(DirectoryBytes(to) == DirectoryBytes(packed()));
}

TEST_F(PackTest, ATornJournalLosesOnlyItsLastLine) {
  Pack();
  const auto to = dir_ / "torn";
  ASSERT_TRUE(PackAndDie(model(), to, 200));
  Truncate(to / "journal.txt", 5);
  PackModel(model(), {to}, SmallSteps(), nullptr);
  EXPECT_TRUE(DirectoryBytes(to) == DirectoryBytes(packed()));
}

TEST_F(PackTest, APartialFileThatWasChangedIsFoundWhenItIsReadBack) {
  const auto to = dir_ / "changed";
  ASSERT_TRUE(PackAndDie(model(), to, 200));
  FlipBit(to / "core.bin.partial", 100);
  const auto pack = [&] { PackModel(model(), {to}, SmallSteps(), nullptr); };
  ExpectError(ErrorCode::kRuntime, {"core.bin.partial", "embed_tokens", "other bytes"}, pack);
  pack();
  Pack();
  EXPECT_TRUE(DirectoryBytes(to) == DirectoryBytes(packed()));
}

TEST_F(PackTest, APackThatIsCompleteIsLeftAsItIs) {
  Pack();
  const auto time = std::filesystem::last_write_time(packed() / "core.bin");
  EXPECT_EQ(Pack().outcome, WriteOutcome::kAlreadyThere);
  EXPECT_EQ(std::filesystem::last_write_time(packed() / "core.bin"), time);
}

TEST_F(PackTest, NothingElseIsOverwritten) {
  Pack();
  const auto other = dir_ / "other";
  std::filesystem::create_directory(other);
  CheckpointBuilder::KimiK3({.seed = 2}).Write(other);
  const auto pack = [&] { PackModel(other, {packed()}, {}, nullptr); };
  ExpectError(ErrorCode::kUsage, {packed().string(), "another model", "-o"}, pack);
  std::filesystem::remove_all(packed());
  ASSERT_TRUE(PackAndDie(model(), packed(), 100));
  ExpectError(ErrorCode::kUsage, {packed().string(), "unfinished", "another model"}, pack);
  ExpectError(ErrorCode::kUsage, {model().string(), "empty directory"},
              [&] { PackModel(other, {model()}, {}, nullptr); });
  std::filesystem::remove_all(packed());
  Pack();
  ExpectError(ErrorCode::kUsage, {"container already"},
              [&] { PackModel(packed(), {dir_ / "again"}, {}, nullptr); });
}

TEST_F(PackTest, TooLittleRoomIsRefusedBeforeAnythingIsWritten) {
  WriteOptions options;
  options.free_disk_bytes = [](const auto&) { return uint64_t{1'000'000}; };
  ExpectError(ErrorCode::kRuntime, {packed().string(), "1.00 MB free", "needed"},
              [&] { Pack(options); });
  EXPECT_TRUE(std::filesystem::is_empty(packed()));
}

TEST_F(PackTest, AFullDriveIsOneErrorAndThePackGoesOnLater) {
  const auto to = dir_ / "full";
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {98'304, 98'304};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      PackModel(model(), {to}, SmallSteps(), nullptr);
    } catch (const Error& error) {
      const std::string message = error.what();
      const bool named = message.find("core.bin.partial") != std::string::npos &&
                         message.find("goes on") != std::string::npos;
      ::_exit(named && error.code() == ErrorCode::kRuntime ? 7 : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  PackModel(model(), {to}, SmallSteps(), nullptr);
  Pack();
  EXPECT_TRUE(DirectoryBytes(to) == DirectoryBytes(packed()));
}

class StopAt : public PackObserver {
 public:
  explicit StopAt(uint64_t bytes) : bytes_(bytes) {}
  bool OnProgress(uint64_t done, uint64_t total, uint64_t skipped) override {
    EXPECT_GE(done, last_);
    EXPECT_LE(skipped, done);
    EXPECT_LE(done, total);
    last_ = done;
    total_ = total;
    return done < bytes_;
  }
  bool AtEnd() const { return last_ + 65536 > total_; }

 private:
  uint64_t bytes_;
  uint64_t last_ = 0;
  uint64_t total_ = 0;
};

TEST_F(PackTest, AnObserverStopsItAndProgressReachesTheEnd) {
  StopAt stop(150'000);
  ExpectError(ErrorCode::kInterrupted, {"goes on"},
              [&] { PackModel(model(), {packed()}, SmallSteps(), &stop); });
  StopAt whole(UINT64_MAX);
  PackModel(model(), {packed()}, SmallSteps(), &whole);
  EXPECT_TRUE(whole.AtEnd());
  ExpectSameLogits(model(), packed());
}

TEST_F(PackTest, ExpertsSpreadOverSeveralDirectories) {
  const std::vector<std::filesystem::path> directories = {packed(), dir_ / "b", dir_ / "c"};
  PackModel(model(), directories, {}, nullptr);
  EXPECT_EQ(DirectoryBytes(dir_ / "b").size(), 1U);
  EXPECT_EQ(DirectoryBytes(dir_ / "c").size(), 1U);
  ExpectSameLogits(model(), packed());
  EXPECT_EQ(VerifyModel(packed(), nullptr).num_damaged, 0U);
  std::filesystem::remove_all(dir_ / "c");
  ExpectBadModel({(dir_ / "c").string(), "missing", "drive"}, [&] { LogitsOf(packed()); });
}

// ---- verify

TEST_F(PackTest, VerifyReadsEverything) {
  const VerifyReport snapshot = VerifyModel(model(), nullptr);
  EXPECT_FALSE(snapshot.is_container);
  EXPECT_EQ(snapshot.num_damaged, 0U);
  EXPECT_EQ(snapshot.num_checked, 6U);
  Pack();
  const VerifyReport report = VerifyModel(packed(), nullptr);
  EXPECT_TRUE(report.is_container);
  EXPECT_EQ(report.num_damaged, 0U);
  EXPECT_GT(report.bytes, 100'000U);
}

TEST_F(PackTest, AFlippedBitIsNamed) {
  Pack();
  const ModelConfig config = ReadModelConfig(packed());
  const Container container = OpenContainer(packed(), config);
  const TensorStore store = TensorStore::Open(packed(), config);
  const uint64_t tensor = store.Layer(1, TensorRole::kOut).offset;
  FlipBit(packed() / "core.bin", tensor + 3);
  ExpectDamage({"core.bin", "layer 1, self_attn.o_proj.weight", "checksum"});
  FlipBit(packed() / "core.bin", tensor + 3);
  const ExpertPiece piece = store.Expert(2, 5)[4];
  FlipBit(store.files()[piece.file].path, piece.offset);
  ExpectDamage({"experts-002.bin", "layer 2, expert 5"});
}

TEST_F(PackTest, ATruncatedFileIsNamed) {
  Pack();
  Truncate(packed() / "experts-003.bin", 1);
  ExpectBadModel({"experts-003.bin", "truncated", "expected", "found"},
                 [&] { VerifyModel(packed(), nullptr); });
}

TEST_F(PackTest, AScaleThatIsNoNumberIsFoundInASnapshotAndNotPacked) {
  const ModelConfig config = ReadModelConfig(model());
  const TensorStore store = TensorStore::Open(model(), config);
  const ExpertPiece scales = store.Expert(1, 3)[3];
  Overwrite(store.files()[scales.file].path, scales.offset + 4, "\xff");
  const VerifyReport report = VerifyModel(model(), nullptr);
  ASSERT_EQ(report.num_damaged, 1U);
  EXPECT_THAT(report.damages[0], testing::HasSubstr("layer 1, expert 3: the scale at byte " +
                                                    std::to_string(scales.offset + 4) + " is NaN"));
  ExpectBadModel({"layer 1, expert 3", "NaN"}, [&] { Pack(); });
}

}  // namespace
}  // namespace thimble
