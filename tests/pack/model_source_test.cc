#include "pack/model_source.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "format/checksum.h"
#include "format/container.h"
#include "pack/pack.h"
#include "pack/synth.h"
#include "support/checkpoint_builder.h"
#include "support/directory_bytes.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

WriteOptions Choice(bool raw, bool q8_trunk = false, bool mxfp4_experts = false) {
  WriteOptions options;
  options.raw = raw;
  options.q8_trunk = q8_trunk;
  options.mxfp4_experts = mxfp4_experts;
  return options;
}

const WriteOptions kCoded = Choice(false);
const WriteOptions kRaw = Choice(true);
const WriteOptions kQ8 = Choice(false, true);

// The dense layer's matrices have two groups of coded rows, the second one short.
const CheckpointDims kTwoGroups = {.dense_inner = 2080};

// One expert's scales take so many values that coding would not shrink them.
CheckpointBuilder KimiK3WithOddScales() {
  CheckpointBuilder builder = CheckpointBuilder::KimiK3(kTwoGroups);
  std::mt19937 random(1);
  for (CheckpointBuilder::Tensor& tensor : builder.tensors()) {
    const bool odd = tensor.name.find("layers.1.") != std::string::npos &&
                     tensor.name.find("experts.5.") != std::string::npos &&
                     tensor.name.ends_with("_scale");
    if (!odd) continue;
    for (char& scale : tensor.bytes) scale = static_cast<char>(90 + random() % 40);
  }
  return builder;
}

// Packing containers must give what packing the download gives.
class ContainerSourceTest : public ::testing::Test {
 protected:
  explicit ContainerSourceTest(CheckpointBuilder builder = KimiK3WithOddScales()) {
    std::filesystem::create_directory(download());
    builder.Write(download());
    WriteText(download() / "README.md", "about");
  }

  std::filesystem::path download() const { return dir_ / "download"; }

  // Packs `model` into a directory of its own.
  std::filesystem::path Pack(const std::filesystem::path& model, const WriteOptions& options) {
    const std::filesystem::path to = dir_ / ("packed-" + std::to_string(num_packed_++));
    EXPECT_EQ(PackModel(model, {to}, options, nullptr).outcome, WriteOutcome::kWritten);
    return to;
  }

  void ExpectSame(const std::filesystem::path& found, const std::filesystem::path& expected) {
    EXPECT_TRUE(DirectoryBytes(found) == DirectoryBytes(expected));
  }

  TempDir dir_;
  size_t num_packed_ = 0;
};

class Bf16ContainerSourceTest : public ContainerSourceTest {
 protected:
  Bf16ContainerSourceTest() : ContainerSourceTest(CheckpointBuilder::KimiLinear(kTwoGroups)) {}
};

TEST_F(ContainerSourceTest, AnyContainerGivesTheFilesThatTheDownloadGives) {
  const std::vector<std::filesystem::path> sources = {Pack(download(), kRaw),
                                                      Pack(download(), kCoded)};
  for (WriteOptions options : {kRaw, kCoded, kQ8, Choice(true, true)}) {
    const std::filesystem::path expected = Pack(download(), options);
    for (const std::filesystem::path& source : sources) {
      for (const size_t chunk : {size_t{4096}, size_t{16} << 20}) {
        options.chunk_bytes = chunk;
        ExpectSame(Pack(source, options), expected);
      }
    }
  }
}

TEST_F(Bf16ContainerSourceTest, AnyContainerGivesTheFilesThatTheDownloadGives) {
  const std::vector<std::filesystem::path> sources = {Pack(download(), kRaw),
                                                      Pack(download(), kCoded)};
  for (const bool q8 : {false, true}) {
    for (const bool mxfp4 : {false, true}) {
      const WriteOptions options = Choice(false, q8, mxfp4);
      const std::filesystem::path expected = Pack(download(), options);
      for (const auto& source : sources) ExpectSame(Pack(source, options), expected);
    }
  }
}

// The loss that was noted is kept with the tensors, whichever was quantised first.
TEST_F(Bf16ContainerSourceTest, WhatIsLossyStaysSoToTheByteAndTheRestCanBeQuantisedLater) {
  const auto both = Pack(download(), Choice(false, true, true));
  const auto q8 = Pack(download(), kQ8);
  const auto mxfp4 = Pack(download(), Choice(false, false, true));
  ExpectSame(Pack(both, kCoded), both);
  ExpectSame(Pack(Pack(both, kRaw), kCoded), both);
  ExpectSame(Pack(q8, kCoded), q8);
  ExpectSame(Pack(q8, Choice(false, false, true)), both);
  ExpectSame(Pack(mxfp4, kQ8), both);
  const TensorStore store = TensorStore::Open(both, ReadModelConfig(both));
  ASSERT_EQ(store.lossy().size(), 2U);
  EXPECT_GT(store.lossy()[0].relative_error, 0.01F);
  EXPECT_GT(store.lossy()[1].relative_error, 0.002F);
}

TEST_F(Bf16ContainerSourceTest, NothingIsQuantisedTwice) {
  const auto both = Pack(download(), Choice(false, true, true));
  const auto to = dir_ / "again";
  ExpectError(ErrorCode::kUsage, {both.string(), "expected a BF16 trunk", "Q8 already", "--trunk"},
              [&] { PackModel(both, {to}, kQ8, nullptr); });
  ExpectError(ErrorCode::kUsage, {both.string(), "MXFP4 already", "--experts"},
              [&] { PackModel(both, {to}, Choice(false, false, true), nullptr); });
  EXPECT_FALSE(std::filesystem::exists(to));
}

TEST_F(ContainerSourceTest, ExpertsMayLieInSeveralDirectories) {
  const auto spread = dir_ / "spread";
  PackModel(download(), {spread, dir_ / "b", dir_ / "c"}, kRaw, nullptr);
  ExpectSame(Pack(spread, kCoded), Pack(download(), kCoded));
}

TEST(SyntheticSourceTest, WhatIsStoredOnceForSeveralIsStoredOnceAgain) {
  TempDir dir;
  SynthOptions synth;
  synth.architecture = "k3-small";
  synth.shape.layers = 6;  // three of them repeat others
  synth.distinct_layers = 1;
  synth.distinct_experts = 2;
  SynthesizeModel(synth, dir / "raw", kRaw, nullptr);
  SynthesizeModel(synth, dir / "coded", kCoded, nullptr);
  PackModel(dir / "raw", {dir / "packed"}, kCoded, nullptr);
  EXPECT_TRUE(
      OpenContainer(dir / "packed", ReadModelConfig(dir / "packed")).manifest.shared_extents);
  EXPECT_TRUE(DirectoryBytes(dir / "packed") == DirectoryBytes(dir / "coded"));
}

// ---- where it may be written

TEST_F(ContainerSourceTest, TheModelsOwnDirectoryIsNeverWrittenInto) {
  const auto packed = Pack(download(), kCoded);
  const auto link = dir_ / "link";
  std::filesystem::create_directory_symlink(packed, link);
  for (const auto& directory : {packed, packed / "raw", link, link / "a" / "b"}) {
    for (const bool is_first : {true, false}) {
      std::vector<std::filesystem::path> directories = {directory};
      if (!is_first) directories.insert(directories.begin(), dir_ / "fine");
      ExpectError(ErrorCode::kUsage, {directory.string(), "outside the model", packed.string()},
                  [&] { PackModel(packed, directories, kCoded, nullptr); });
    }
  }
  ExpectError(ErrorCode::kUsage, {"outside the model"},
              [&] { PackModel(packed / "", {packed}, kRaw, nullptr); });
  EXPECT_FALSE(std::filesystem::exists(packed / "raw"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "fine"));
  // A name that only begins alike is another directory.
  PackModel(packed, {packed.string() + "-raw"}, kRaw, nullptr);
}

// ---- stopped and gone on

// Packs, and stops at step `n`. False where it got to the end before.
bool StoppedAt(size_t n, const std::filesystem::path& model, const std::filesystem::path& to,
               WriteOptions options) {
  struct Stop {};
  size_t step = 0;
  options.on_step = [&] {
    if (++step == n) throw Stop();
  };
  try {
    PackModel(model, {to}, options, nullptr);
  } catch (const Stop&) {
    return true;
  }
  return false;
}

TEST_F(ContainerSourceTest, StoppedItGoesOnFromAnyContainerOfTheSameModel) {
  const auto raw = Pack(download(), kRaw);
  const auto coded = Pack(download(), kCoded);
  for (WriteOptions options : {kCoded, kQ8}) {
    const auto expected = Pack(download(), options);
    options.chunk_bytes = 4096;
    options.sync_bytes = 65536;
    size_t stops = 0;
    for (size_t n = 10;; n += n) {
      const auto to = dir_ / ("stopped-" + std::to_string(n));
      if (!StoppedAt(n, coded, to, options)) break;
      ++stops;
      PackModel(stops % 2 == 0 ? coded : raw, {to}, options, nullptr);
      ExpectSame(to, expected);
      std::filesystem::remove_all(to);
    }
    EXPECT_GT(stops, 4U);
    std::filesystem::remove_all(dir_ / "stopped-10");
  }
}

// ---- damage

// The byte at which an extent lies, and its file.
struct Place {
  std::filesystem::path file;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

Place PlaceOf(const std::filesystem::path& packed,
              const std::function<bool(const ExtentUse&)>& is_wanted) {
  const Container container = OpenContainer(packed, ReadModelConfig(packed));
  size_t i = 0;
  while (!is_wanted(container.uses.at(i))) ++i;
  const ContainerExtent& extent = container.table.extents[i];
  return {container.paths[extent.file], extent.offset, extent.bytes};
}

Place ExpertPlace(const std::filesystem::path& packed) {
  return PlaceOf(packed, [](const ExtentUse& use) {
    return use.kind == ExtentUse::Kind::kExpert && use.layer == 2 && use.item == 5;
  });
}

// The last matrix of the dense layer, which is coded in two groups.
Place DensePlace(const std::filesystem::path& packed) {
  const ModelConfig config = ReadModelConfig(packed);
  const TensorStore store = TensorStore::Open(packed, config);
  const TensorExtent& extent = store.Layer(0, TensorRole::kDenseUp);
  return {store.files()[extent.file].path, extent.offset, extent.Bytes()};
}

class DamagedSourceTest : public ContainerSourceTest {
 protected:
  // Packs a container made with `source` to `target`, with one bit flipped here and there.
  void ExpectDamageNamed(const WriteOptions& source, const WriteOptions& target) {
    const auto packed = Pack(download(), source);
    const Place dense = DensePlace(packed);
    const Place expert = ExpertPlace(packed);
    struct Damage {
      std::filesystem::path file;
      uint64_t offset;
      const char* what;
    };
    const std::vector<Damage> damages = {
        {packed / kCoreFile, 3, "model.embed_tokens"},
        {dense.file, dense.offset + 2, "layer 0, mlp"},  // the size of a coded group
        {dense.file, dense.offset + dense.bytes / 2, "layer 0, mlp"},
        {dense.file, dense.offset + dense.bytes - 1, "layer 0, mlp"},
        {expert.file, expert.offset, "layer 2, expert 5"},
        {expert.file, expert.offset + expert.bytes - 1, "layer 2, expert 5"}};
    const auto to = dir_ / "to";
    const auto pack = [&] { PackModel(packed, {to}, target, nullptr); };
    for (const Damage& damage : damages) {
      FlipBit(damage.file, damage.offset);
      ExpectBadModel({damage.file.string() + " is damaged: " + damage.what, "(extent ",
                      "bytes at byte ", "expected the checksum ", ", found ", "copy the file"},
                     pack);
      FlipBit(damage.file, damage.offset);
    }
    pack();
    ExpectSame(to, Pack(download(), target));
  }
};

TEST_F(DamagedSourceTest, OfACodedOneFileExtentAndChecksumsAreNamedAndPackingGoesOnOnceRepaired) {
  ExpectDamageNamed(kCoded, kRaw);
}

TEST_F(DamagedSourceTest, OfARawOneLikewiseWhileItIsQuantised) { ExpectDamageNamed(kRaw, kQ8); }

// An infinite weight cannot be quantised, but the reason is that the file is damaged.
TEST_F(ContainerSourceTest, DamageThatMakesWeightsInfiniteIsToldAsDamage) {
  const auto packed = Pack(download(), kRaw);
  const Place dense = DensePlace(packed);
  Overwrite(dense.file, dense.offset + 8, "\x80\x7f");
  ExpectBadModel({"core.bin is damaged: layer 0, mlp", "checksum"},
                 [&] { PackModel(packed, {dir_ / "to"}, kQ8, nullptr); });
}

// As a writer would leave it that erred.
void MakeChecksumsRight(const std::filesystem::path& packed) {
  Container container = OpenContainer(packed, ReadModelConfig(packed));
  for (ContainerExtent& extent : container.table.extents) {
    std::string bytes(extent.bytes, 0);
    File::Open(container.paths[extent.file]).ReadAt(extent.offset, bytes.size(), bytes.data());
    extent.checksum = ChecksumOf(bytes);
  }
  const std::string table = ExtentTableBytes(container.table);
  container.manifest.table_checksum = ChecksumOf(table);
  WriteText(packed / kExtentTableFile, table);
  WriteText(packed / kManifestFile, ManifestText(container.manifest));
}

TEST_F(ContainerSourceTest, WhatCannotBeDecodedIsNamedThoughItsChecksumIsRight) {
  const auto expect_named = [&](const Place& place, uint64_t at, const std::string& what) {
    const auto packed = place.file.parent_path();
    const std::string before = ReadBytes(place.file);
    Overwrite(place.file, place.offset + at, "\x07");
    MakeChecksumsRight(packed);
    ExpectBadModel({place.file.string() + ": " + what, "cannot be decoded", "pack the model again"},
                   [&] { PackModel(packed, {dir_ / "to"}, kRaw, nullptr); });
    std::filesystem::remove_all(dir_ / "to");  // what was sound before that place
    WriteText(place.file, before);
    MakeChecksumsRight(packed);
  };
  const auto packed = Pack(download(), kCoded);
  const ModelConfig config = ReadModelConfig(packed);
  const TensorStore store = TensorStore::Open(packed, config);
  const ExpertExtent expert = store.Expert(2, 5);
  const Place place = ExpertPlace(packed);
  ASSERT_GT(expert.coded_scale_bytes, 0U);
  expect_named(place, place.bytes - expert.coded_scale_bytes, "layer 2, expert 5");
  expect_named(DensePlace(packed), 4, "layer 0, mlp");
}

}  // namespace
}  // namespace thimble
