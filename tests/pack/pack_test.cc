#include "pack/pack.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "format/checksum.h"
#include "format/container.h"
#include "io/file.h"
#include "kernels/kernels.h"
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

// Of all elements: the root mean square of the differences over that of what was expected.
double RelativeError(const std::vector<float>& found, const std::vector<float>& expected) {
  WeightLoss sum;
  for (size_t i = 0; i < expected.size(); ++i) {
    sum.Add({std::pow(double{expected[i]} - found[i], 2), std::pow(expected[i], 2)});
  }
  return sum.Relative();
}

uint64_t Fingerprint(const std::filesystem::path& dir) {
  const ModelDirectory model = ModelDirectory::Open(dir);
  EngineOptions options;
  options.context = 8;
  return Engine::Open(model, options)->Fingerprint();
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
  EXPECT_EQ(Fingerprint(model()), Fingerprint(packed()));
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
bool PackAndDie(const std::filesystem::path& model, const std::filesystem::path& to, size_t n,
                WriteOptions options = SmallSteps()) {
  const pid_t child = ::fork();
  if (child == 0) {
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

// How often packing `model` was killed, ever later from step `first` on, each time going on to the
// files of `packed`.
size_t DeathsSurvived(const std::filesystem::path& model, const std::filesystem::path& packed,
                      const std::filesystem::path& to, size_t first) {
  const Files expected = DirectoryBytes(packed);
  size_t deaths = 0;
  for (size_t n = first;; n += 1 + n / 2) {
    std::filesystem::remove_all(to);
    if (!PackAndDie(model, to, n)) return deaths;
    ++deaths;
    PackModel(model, {to}, SmallSteps(), nullptr);
    const bool same = DirectoryBytes(to) == expected;
    EXPECT_TRUE(same) << "killed at step " << n;
    if (!same) return deaths;
  }
}

TEST_F(PackTest, KilledAtAnyStepItGoesOnAndTheFilesAreTheSame) {
  Pack();
  EXPECT_GT(DeathsSurvived(model(), packed(), dir_ / "killed", 1), 8U);
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
}

TEST_F(PackTest, TooLittleRoomIsRefusedBeforeAnythingIsWritten) {
  WriteOptions options;
  options.free_disk_bytes = [](const auto&) { return uint64_t{1'000'000}; };
  ExpectError(ErrorCode::kRuntime, {packed().string(), "1.00 MB free", "needed"},
              [&] { Pack(options); });
  EXPECT_FALSE(std::filesystem::exists(packed()));
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
                         message.find("run the same command again") != std::string::npos;
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

// ---- scales coded

// Two experts of layer 1 have scales of so many values that coding would not shrink them.
class CodedScalesTest : public PackTest {
 protected:
  CodedScalesTest() {
    CheckpointBuilder builder = CheckpointBuilder::KimiK3();
    std::mt19937 random(1);
    for (CheckpointBuilder::Tensor& tensor : builder.tensors()) {
      const bool odd = tensor.name.find("layers.1.") != std::string::npos &&
                       (tensor.name.find("experts.0.") != std::string::npos ||
                        tensor.name.find("experts.5.") != std::string::npos);
      if (!odd || !tensor.name.ends_with("_scale")) continue;
      for (char& scale : tensor.bytes) scale = static_cast<char>(90 + random() % 40);
    }
    std::filesystem::remove_all(model());
    std::filesystem::create_directory(model());
    builder.Write(model());
  }

  TensorStore Packed() const { return TensorStore::Open(packed(), ReadModelConfig(packed())); }

  // Sets the first byte of the coded scales of every expert of layer 2.
  void DamageScales() {
    const TensorStore store = Packed();
    for (size_t expert = 0; expert < 8; ++expert) {
      const ExpertPiece scales = store.Expert(2, expert)[1];
      Overwrite(store.files()[scales.file].path, scales.offset, "\x03");
    }
  }
};

TEST_F(CodedScalesTest, AnExpertWhoseScalesWouldGrowKeepsThem) {
  Pack();
  const TensorStore store = Packed();
  for (const size_t layer : {1U, 2U, 3U, 4U}) {
    for (size_t expert = 0; expert < 8; ++expert) {
      const ExpertExtent extent = store.Expert(layer, expert);
      const bool plain = layer == 1 && (expert == 0 || expert == 5);
      EXPECT_EQ(extent.coded_scale_bytes == 0, plain) << layer << ", " << expert;
      EXPECT_EQ(extent.StoredBytes() == store.expert_bytes(), plain);
      EXPECT_LE(extent.coded_scale_bytes, extent.ScaleBytes() / 2);
    }
  }
  EXPECT_EQ(VerifyModel(packed(), nullptr).num_damaged, 0U);
}

TEST_F(CodedScalesTest, LogitsAreTheSameInEveryWayOfReading) {
  Pack();
  const std::vector<float> expected = LogitsOf(model());
  for (const ReadMode mode : {ReadMode::kBuffered, ReadMode::kDirect, ReadMode::kMapped}) {
    for (const bool preload : {false, true}) {
      for (const bool check : {false, true}) {
        EngineOptions options;
        options.read_mode = mode;
        options.preload = preload;
        options.check = check;
        EXPECT_TRUE(LogitsOf(packed(), options) == expected);
      }
    }
  }
}

TEST_F(CodedScalesTest, KilledAtAnyStepItGoesOnAndTheFilesAreTheSame) {
  Pack();
  EXPECT_GT(DeathsSurvived(model(), packed(), dir_ / "killed", 50), 2U);
}

TEST_F(CodedScalesTest, DamagedOnesAreOneErrorThatNamesThem) {
  Pack();
  DamageScales();
  for (const bool preload : {false, true}) {
    EngineOptions options;
    options.preload = preload;
    ExpectBadModel({"experts-002.bin", "damaged", "layer 2, expert ", "at byte ", "coded scales"},
                   [&] { LogitsOf(packed(), options); });
    options.check = true;
    ExpectBadModel({"experts-002.bin", "damaged", "layer 2, expert ", "checksum"},
                   [&] { LogitsOf(packed(), options); });
  }
  const VerifyReport report = VerifyModel(packed(), nullptr);
  EXPECT_EQ(report.num_damaged, 8U);
  EXPECT_THAT(report.damages[0], testing::HasSubstr("layer 2, expert 0"));
}

// A writer that errs makes checksums of what it wrote.
TEST_F(CodedScalesTest, VerifyDecodesThemToo) {
  Pack();
  DamageScales();
  Container container = OpenContainer(packed(), ReadModelConfig(packed()));
  for (size_t i = 0; i < container.uses.size(); ++i) {
    ContainerExtent& extent = container.table.extents[i];
    std::string bytes(extent.bytes, 0);
    File::Open(container.paths[extent.file]).ReadAt(extent.offset, bytes.size(), bytes.data());
    extent.checksum = ChecksumOf(bytes);
  }
  const std::string table = ExtentTableBytes(container.table);
  container.manifest.table_checksum = ChecksumOf(table);
  WriteText(packed() / kExtentTableFile, table);
  WriteText(packed() / kManifestFile, ManifestText(container.manifest));
  const VerifyReport report = VerifyModel(packed(), nullptr);
  EXPECT_EQ(report.num_damaged, 8U);
  EXPECT_THAT(
      report.damages[7],
      testing::AllOf(testing::HasSubstr("experts-002.bin"), testing::HasSubstr("layer 2, expert 7"),
                     testing::HasSubstr("coded scales cannot be decoded")));
}

// ---- experts quantised

class LossyPackTest : public ::testing::Test {
 protected:
  LossyPackTest() {
    std::filesystem::create_directory(model());
    CheckpointBuilder::KimiLinear().Write(model());
  }

  std::filesystem::path model() const { return dir_ / "model"; }
  std::filesystem::path packed() const { return dir_ / "packed"; }
  static WriteOptions Lossy(WriteOptions options = {}) {
    options.mxfp4_experts = true;
    return options;
  }
  PackResult Pack(const WriteOptions& options) {
    return PackModel(model(), {packed()}, options, nullptr);
  }

  TempDir dir_;
};

TEST_F(LossyPackTest, ExpertsAreStoredAsPublishedMxfp4OnesAreAndMarkedLossy) {
  const PackResult result = Pack(Lossy());
  const ModelConfig config = ReadModelConfig(packed());
  EXPECT_EQ(config.moe.format, WeightFormat::kMXFP4);
  const TensorStore store = TensorStore::Open(packed(), config);
  ASSERT_EQ(store.lossy().size(), 1U);
  EXPECT_EQ(store.lossy()[0].part, "experts");
  EXPECT_EQ(store.lossy()[0].format, "mxfp4");
  // Normally distributed weights lose about a tenth.
  EXPECT_NEAR(store.lossy()[0].relative_error, 0.105, 0.02);
  ASSERT_GE(result.losses.size(), 2U);
  EXPECT_EQ(result.losses[0].name, "layer 1");
  EXPECT_EQ(result.losses.back().name, "in all");
  EXPECT_NEAR(result.losses.back().experts.Relative(), store.lossy()[0].relative_error, 1e-6);
  EXPECT_EQ(VerifyModel(packed(), nullptr).num_damaged, 0U);
}

// What the engine computes with is what was quantised: the expert's weights, decoded, are off by
// the loss that was noted.
TEST_F(LossyPackTest, DecodedWeightsAreOffByTheNotedLoss) {
  WriteOptions raw;
  raw.raw = true;
  const PackResult result = Pack(Lossy(raw));
  const ModelConfig given_config = ReadModelConfig(model());
  const ModelConfig config = ReadModelConfig(packed());
  const TensorStore given = TensorStore::Open(model(), given_config);
  const TensorStore stored = TensorStore::Open(packed(), config);
  const auto read = [](const TensorStore& store, const ExpertPiece& piece) {
    std::vector<uint8_t> bytes(piece.bytes);
    File::Open(store.files()[piece.file].path).ReadAt(piece.offset, bytes.size(), bytes.data());
    return bytes;
  };
  WeightLoss all;
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    if (config.layers[layer].feed_forward != FeedForwardKind::kMoe) continue;
    for (size_t expert = 0; expert < config.moe.num_experts; ++expert) {
      for (const size_t piece : {0U, 2U, 4U}) {
        const auto elements = read(given, given.Expert(layer, expert)[piece]);
        const auto codes = read(stored, stored.Expert(layer, expert)[piece]);
        const auto scales = read(stored, stored.Expert(layer, expert)[piece + 1]);
        std::vector<float> weights(elements.size() / 2);
        std::vector<float> decoded(weights.size());
        ASSERT_EQ(codes.size() * 2, weights.size());
        BestKernels().decode({WeightFormat::kBF16, 1, weights.size(), elements.data()},
                             weights.data());
        BestKernels().decode({WeightFormat::kMXFP4, 1, weights.size(), codes.data(), scales.data()},
                             decoded.data());
        for (size_t i = 0; i < weights.size(); ++i) {
          const double difference = double{decoded[i]} - weights[i];
          all.Add({difference * difference, double{weights[i]} * weights[i]});
        }
      }
    }
  }
  EXPECT_GT(all.differences, 0.0);
  EXPECT_NEAR(all.Relative(), result.losses.back().experts.Relative(), 1e-12);
}

TEST_F(LossyPackTest, TheirScalesAreCodedWithoutLoss) {
  Pack(Lossy());
  const TensorStore store = TensorStore::Open(packed(), ReadModelConfig(packed()));
  EXPECT_LT(store.MeanStoredExpertBytes(), store.expert_bytes());
  WriteOptions raw;
  raw.raw = true;
  PackModel(model(), {dir_ / "raw"}, Lossy(raw), nullptr);
  const TensorStore plain = TensorStore::Open(dir_ / "raw", ReadModelConfig(dir_ / "raw"));
  EXPECT_EQ(plain.MeanStoredExpertBytes(), plain.expert_bytes());
  ExpectSameLogits(packed(), dir_ / "raw");
}

TEST_F(LossyPackTest, LogitsAreNearTheSourceAndTheSameWhateverTheMemory) {
  Pack(Lossy());
  const std::vector<float> exact = LogitsOf(model());
  const std::vector<float> lossy = LogitsOf(packed());
  ASSERT_EQ(exact.size(), lossy.size());
  const double error = RelativeError(lossy, exact);
  EXPECT_GT(error, 0.0);
  EXPECT_LT(error, 0.5);
  for (const size_t threads : {1U, 3U}) {
    EngineOptions options;
    options.num_threads = threads;
    options.prefill_chunk = threads;
    options.read_mode = ReadMode::kDirect;
    EXPECT_TRUE(LogitsOf(packed(), options) == lossy);
  }
}

TEST_F(LossyPackTest, KilledAtAnyStepItGoesOnAndEvenTheNotedLossIsTheSame) {
  const PackResult whole = Pack(Lossy());
  const Files expected = DirectoryBytes(packed());
  const auto to = dir_ / "killed";
  size_t deaths = 0;
  for (size_t n = 40;; n += n) {
    std::filesystem::remove_all(to);
    if (!PackAndDie(model(), to, n, Lossy(SmallSteps()))) break;
    ++deaths;
    const PackResult resumed = PackModel(model(), {to}, Lossy(SmallSteps()), nullptr);
    ASSERT_TRUE(DirectoryBytes(to) == expected) << "killed at step " << n;
    ASSERT_EQ(resumed.losses.size(), whole.losses.size());
    for (size_t i = 0; i < whole.losses.size(); ++i) {
      EXPECT_EQ(resumed.losses[i].experts.differences, whole.losses[i].experts.differences);
      EXPECT_EQ(resumed.losses[i].experts.weights, whole.losses[i].experts.weights);
    }
  }
  EXPECT_GT(deaths, 2U);
}

TEST_F(LossyPackTest, AnotherChoiceDoesNotGoOnNorPassForTheSame) {
  ASSERT_TRUE(PackAndDie(model(), packed(), 60, Lossy(SmallSteps())));
  ExpectError(ErrorCode::kUsage, {packed().string(), "other options"}, [&] { Pack({}); });
  Pack(Lossy());
  ExpectError(ErrorCode::kUsage, {packed().string(), "other options"}, [&] { Pack({}); });
  EXPECT_EQ(Pack(Lossy()).outcome, WriteOutcome::kAlreadyThere);
}

TEST_F(LossyPackTest, SessionsOfTheSourceDoNotFit) {
  Pack(Lossy());
  EXPECT_NE(Fingerprint(model()), Fingerprint(packed()));
}

TEST_F(LossyPackTest, WhatCannotBeQuantisedIsRefused) {
  const auto k3 = dir_ / "k3";
  std::filesystem::create_directory(k3);
  CheckpointBuilder::KimiK3().Write(k3);
  ExpectError(ErrorCode::kUsage, {k3.string(), "MXFP4 already", "--experts"},
              [&] { PackModel(k3, {packed()}, Lossy(), nullptr); });
  EXPECT_FALSE(std::filesystem::exists(packed()));
  const TensorStore store = TensorStore::Open(model(), ReadModelConfig(model()));
  const ExpertPiece piece = store.Expert(1, 3)[0];
  Overwrite(store.files()[piece.file].path, piece.offset + 8, "\x80\x7f");
  ExpectBadModel({"layer 1, expert 3", "finite"}, [&] { Pack(Lossy()); });
}

// ---- the trunk quantised

class Q8PackTest : public PackTest {
 protected:
  static WriteOptions Q8(WriteOptions options = {}) {
    options.q8_trunk = true;
    return options;
  }
};

TEST_F(Q8PackTest, TheTrunkIsMarkedLossyAndOffByLittle) {
  const PackResult result = Pack(Q8());
  const TensorStore store = TensorStore::Open(packed(), ReadModelConfig(packed()));
  ASSERT_EQ(store.lossy().size(), 1U);
  EXPECT_EQ(store.lossy()[0].part, "trunk");
  EXPECT_EQ(store.lossy()[0].format, "q8");
  EXPECT_GT(store.lossy()[0].relative_error, 0.002F);
  EXPECT_LT(store.lossy()[0].relative_error, 0.01F);
  ASSERT_EQ(result.losses.size(), 7U);  // five layers, the head, and all
  EXPECT_EQ(result.losses[0].name, "layer 0");
  EXPECT_EQ(result.losses[5].name, "output head");
  EXPECT_GT(result.losses[5].trunk.weights, 0.0);
  EXPECT_EQ(result.losses[0].experts.weights, 0.0);
  EXPECT_EQ(VerifyModel(packed(), nullptr).num_damaged, 0U);
}

TEST_F(Q8PackTest, LogitsAreNearTheSourceAndTheSameWhateverTheMemory) {
  Pack(Q8());
  const std::vector<float> exact = LogitsOf(model());
  const std::vector<float> lossy = LogitsOf(packed());
  const double error = RelativeError(lossy, exact);
  EXPECT_GT(error, 0.0);
  EXPECT_LT(error, 0.2);
  for (const ReadMode mode : {ReadMode::kBuffered, ReadMode::kDirect, ReadMode::kMapped}) {
    for (const size_t threads : {1U, 3U}) {
      EngineOptions options;
      options.num_threads = threads;
      options.prefill_chunk = threads;
      options.read_mode = mode;
      EXPECT_TRUE(LogitsOf(packed(), options) == lossy);
    }
  }
}

TEST_F(Q8PackTest, KilledItGoesOnAndOtherChoicesAreRefused) {
  Pack(Q8());
  const Files expected = DirectoryBytes(packed());
  const auto to = dir_ / "killed";
  size_t deaths = 0;
  for (size_t n = 20;; n += n) {
    std::filesystem::remove_all(to);
    if (!PackAndDie(model(), to, n, Q8(SmallSteps()))) break;
    ++deaths;
    ExpectError(ErrorCode::kUsage, {to.string(), "other options"},
                [&] { PackModel(model(), {to}, SmallSteps(), nullptr); });
    PackModel(model(), {to}, Q8(SmallSteps()), nullptr);
    ASSERT_TRUE(DirectoryBytes(to) == expected) << "killed at step " << n;
  }
  EXPECT_GT(deaths, 2U);
  ExpectError(ErrorCode::kUsage, {"other options"}, [&] { Pack(); });
  EXPECT_EQ(Pack(Q8()).outcome, WriteOutcome::kAlreadyThere);
}

TEST_F(Q8PackTest, SessionsOfTheSourceDoNotFit) {
  const auto exact = dir_ / "exact";
  PackModel(model(), {exact}, {}, nullptr);
  Pack(Q8());
  EXPECT_NE(Fingerprint(exact), Fingerprint(packed()));
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
