#include "format/tensor_store.h"

#include <gtest/gtest.h>

#include <string>

#include "format/model_summary.h"
#include "io/file.h"
#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/shared_data.h"
#include "support/temp_dir.h"
#include "support/without_capability.h"

namespace thimble {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kQuery = "language_model.model.layers.1.self_attn.q_proj.weight";
constexpr const char* kCodes =
    "language_model.model.layers.1.block_sparse_moe.experts.3.w1.weight_packed";

TensorStore OpenDir(const std::filesystem::path& dir) {
  return TensorStore::Open(dir, ReadModelConfig(dir));
}

// A checkpoint in a directory of its own.
class TensorStoreTest : public testing::Test {
 protected:
  void Write() { builder_.Write(dir_.path()); }
  std::filesystem::path Shard(size_t shard) { return dir_ / builder_.ShardName(shard); }
  // Opening fails with a message that holds all of `parts`.
  void ExpectRejected(const std::vector<std::string>& parts) {
    ExpectBadModel(parts, [&] { OpenDir(dir_.path()); });
  }

  TempDir dir_;
  CheckpointBuilder builder_ = CheckpointBuilder::KimiK3();
};

std::string ReadPlace(const TensorStore& store, uint32_t file, uint64_t offset, uint64_t bytes) {
  const File opened = File::Open(store.files().at(file).path);
  EXPECT_EQ(opened.size(), store.files().at(file).size);
  std::string data(bytes, '\0');
  opened.ReadAt(offset, bytes, data.data());
  return data;
}

std::string ReadExtent(const TensorStore& store, const TensorExtent& extent) {
  return ReadPlace(store, extent.file, extent.offset, extent.Bytes());
}

// Every tensor of the configuration lies where the store says, byte for byte.
void ExpectSameBytes(const TensorStore& store, CheckpointBuilder& builder,
                     const std::string& prefix) {
  const ModelConfig config = ParseModelConfig(builder.config().dump(), "config.json");
  for (const TensorSpec& spec : GlobalTensors(config)) {
    EXPECT_EQ(ReadExtent(store, store.Global(spec.role)),
              builder.FindTensor(prefix + std::string(spec.name)).bytes);
  }
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    const std::string in_layer = prefix + "model.layers." + std::to_string(layer) + ".";
    for (const TensorSpec& spec : LayerTensors(config, config.layers[layer])) {
      EXPECT_EQ(ReadExtent(store, store.Layer(layer, spec.role)),
                builder.FindTensor(in_layer + std::string(spec.name)).bytes);
    }
    if (config.layers[layer].feed_forward == FeedForwardKind::kDense) continue;
    for (size_t expert = 0; expert < config.moe.num_experts; ++expert) {
      const ExpertExtent extent = store.Expert(layer, expert);
      for (const ExpertTensorSpec& piece : ExpertTensors(config)) {
        const ExpertPiece& place = extent[static_cast<size_t>(piece.tensor)];
        EXPECT_EQ(ReadPlace(store, place.file, place.offset, place.bytes),
                  builder
                      .FindTensor(in_layer + "block_sparse_moe.experts." + std::to_string(expert) +
                                  "." + std::string(piece.name))
                      .bytes);
      }
    }
  }
}

TEST_F(TensorStoreTest, FindsEveryByteOfAKimiK3Checkpoint) {
  Write();
  const TensorStore store = OpenDir(dir_.path());
  EXPECT_EQ(store.files().size(), 6U);
  EXPECT_EQ(store.expert_bytes(), 3U * 32 * (16 + 1));
  const TensorExtent& a_log = store.Layer(1, TensorRole::kALog);
  EXPECT_EQ(a_log.rows, 1U);
  EXPECT_EQ(a_log.cols, 8U);  // two heads, padded
  EXPECT_EQ(a_log.dtype, DType::kF32);
  ExpectSameBytes(store, builder_, "language_model.");
}

TEST_F(TensorStoreTest, FindsEveryByteOfAKimiLinearCheckpoint) {
  builder_ = CheckpointBuilder::KimiLinear();
  Write();
  const TensorStore store = OpenDir(dir_.path());
  EXPECT_EQ(store.expert_bytes(), 3U * 32 * 64 * 2);
  EXPECT_EQ(store.Expert(1, 0)[static_cast<size_t>(ExpertTensor::kUpScales)].bytes, 0U);
  ExpectSameBytes(store, builder_, "");
}

TEST_F(TensorStoreTest, OpensASingleFileWithoutAnIndex) {
  builder_.WriteSingleFile(dir_.path());
  const TensorStore store = OpenDir(dir_.path());
  EXPECT_EQ(store.files().size(), 1U);
  ExpectSameBytes(store, builder_, "language_model.");
}

TEST_F(TensorStoreTest, AcceptsConvolutionsOfTwoDimensionsAndF32Matrices) {
  auto& conv = builder_.FindTensor("language_model.model.layers.1.self_attn.q_conv1d.weight");
  conv.shape = {32, 4};
  auto& norm = builder_.FindTensor("language_model.model.norm.weight");
  norm.dtype = "F32";
  norm.bytes += norm.bytes;
  Write();
  const TensorStore store = OpenDir(dir_.path());
  EXPECT_EQ(store.Layer(1, TensorRole::kQueryConv).cols, 4U);
  EXPECT_EQ(store.Global(TensorRole::kFinalNorm).dtype, DType::kF32);
}

TEST_F(TensorStoreTest, IgnoresTheVisionTowerAndNeedsNoShardOfIt) {
  builder_.tensors().push_back({"vision_tower.x", "F16", {2}, "abcd", 0});
  builder_.EditIndex(
      [](auto& index) { index["weight_map"]["mm_projector.y"] = "model-vision.safetensors"; });
  Write();
  EXPECT_EQ(OpenDir(dir_.path()).files().size(), 6U);
}

TEST_F(TensorStoreTest, ChecksItsArguments) {
  Write();
  const TensorStore store = OpenDir(dir_.path());
  EXPECT_THROW(store.Layer(5, TensorRole::kInputNorm), Error);
  EXPECT_THROW(store.Layer(0, TensorRole::kRouter), Error);
  EXPECT_THROW(store.Layer(0, TensorRole::kCount), Error);
  EXPECT_THROW(store.Global(TensorRole::kQuery), Error);
  EXPECT_THROW(store.Expert(0, 0), Error);
  EXPECT_THROW(store.Expert(1, 8), Error);
}

// Damage to the directory and the shards.

TEST_F(TensorStoreTest, NamesAMissingDirectory) {
  Write();
  const ModelConfig config = ReadModelConfig(dir_.path());
  ExpectBadModel({(dir_ / "none").string(), "No such file"},
                 [&] { TensorStore::Open(dir_ / "none", config); });
  ExpectBadModel({Shard(0).string(), "expected a directory"},
                 [&] { TensorStore::Open(Shard(0), config); });
}

TEST_F(TensorStoreTest, NamesADirectoryThatMayNotBeRead) {
  Write();
  const WithoutCapability bound_by_permissions[] = {WithoutCapability(CAP_DAC_OVERRIDE),
                                                    WithoutCapability(CAP_DAC_READ_SEARCH)};
  const ModelConfig config = ReadModelConfig(dir_.path());
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::none);
  ExpectBadModel({dir_.path().string(), "ermission"},
                 [&] { TensorStore::Open(dir_.path(), config); });
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::owner_all);
  std::filesystem::permissions(Shard(2), std::filesystem::perms::none);
  ExpectRejected({Shard(2).string(), "Permission denied"});
}

TEST_F(TensorStoreTest, NamesAMissingIndex) {
  Write();
  std::filesystem::remove(dir_ / kIndex);
  ExpectRejected({dir_.path().string(), kIndex, "model.safetensors", "neither"});
}

TEST_F(TensorStoreTest, NamesAMissingShard) {
  Write();
  std::filesystem::remove(Shard(3));
  ExpectRejected({"the download is not complete", "missing: " + Shard(3).filename().string()});
}

TEST_F(TensorStoreTest, NamesAShardThatIsADirectory) {
  Write();
  std::filesystem::remove(Shard(3));
  std::filesystem::create_directory(Shard(3));
  ExpectRejected({Shard(3).string(), "directory"});
}

TEST_F(TensorStoreTest, TellsHowMuchOfATruncatedShardIsThere) {
  Write();
  const auto whole = std::filesystem::file_size(Shard(2));
  Truncate(Shard(2), 1);
  const std::string name = Shard(2).filename().string();
  ExpectRejected({"cut: " + name + " (" + std::to_string(whole - 1) + " of " +
                  std::to_string(whole) + " bytes)"});
  std::filesystem::resize_file(Shard(2), 100);
  ExpectRejected({"cut: " + name + " (100 bytes)"});
  std::filesystem::resize_file(Shard(2), 0);
  ExpectRejected({"cut: " + name + " (0 bytes)"});
}

TEST_F(TensorStoreTest, NamesAShardWhoseHeaderLengthWasFlipped) {
  Write();
  Overwrite(Shard(1), 5, "\x80");
  ExpectRejected({Shard(1).string(), "header of at most"});
  Write();
  Overwrite(Shard(1), 0, std::string(8, '\0'));
  ExpectRejected({Shard(1).string(), "starts with '{'"});
}

TEST_F(TensorStoreTest, NamesAShardThatIsNoJson) {
  Write();
  Overwrite(Shard(1), 60, "\x01\x02\x03\"");
  ExpectRejected({Shard(1).string()});
}

TEST_F(TensorStoreTest, NamesTensorsThatOverlap) {
  Write();
  EditHeaderJson(Shard(1), [](auto& header) {
    header[kQuery]["data_offsets"] = header[kCodes]["data_offsets"];
    header[kQuery]["shape"] = header[kCodes]["shape"];
    header[kQuery]["dtype"] = "U8";
  });
  ExpectRejected({Shard(1).string(), "overlaps", kQuery});
}

TEST_F(TensorStoreTest, NamesATensorBeyondTheFile) {
  Write();
  EditHeaderJson(Shard(1), [](auto& header) {
    header[kQuery]["data_offsets"] = {uint64_t{1} << 40, (uint64_t{1} << 40) + 4096};
  });
  ExpectRejected({Shard(1).string(), kQuery, "beyond the file"});
}

TEST_F(TensorStoreTest, NamesATensorWithAnImpossibleShape) {
  Write();
  EditHeaderJson(Shard(1), [](auto& header) { header[kQuery]["shape"] = {uint64_t{1} << 63, 2}; });
  ExpectRejected({Shard(1).string(), kQuery, "9223372036854775808"});
}

TEST_F(TensorStoreTest, NamesATensorThatAShardHasTwice) {
  Write();
  EditHeader(Shard(1), [](std::string header) {
    const size_t start = header.find("\"language_model");
    const size_t end = header.find("},", start) + 2;
    return header.insert(start, header.substr(start, end - start));
  });
  ExpectRejected({Shard(1).string(), "twice", "language_model.model.layers.1."});
}

// Contradictions between configuration, index and shards.

TEST_F(TensorStoreTest, NamesATensorOfTheWrongType) {
  builder_.FindTensor(kQuery).dtype = "F16";
  Write();
  ExpectRejected({Shard(1).string(), kQuery, "expected BF16 or F32", "found F16"});
}

TEST_F(TensorStoreTest, NamesAnExpertOfTheWrongType) {
  builder_.FindTensor(kCodes).dtype = "I8";
  Write();
  ExpectRejected({Shard(1).string(), kCodes, "expected U8", "found I8"});
}

TEST_F(TensorStoreTest, NamesATensorOfTheWrongShape) {
  builder_.FindTensor(kQuery).shape = {64, 32};
  Write();
  ExpectRejected({Shard(1).string(), kQuery, "[32, 64]", "[64, 32]"});
}

TEST_F(TensorStoreTest, NamesAnExpertOfTheWrongShape) {
  builder_.FindTensor(kCodes).shape = {16, 32};
  Write();
  ExpectRejected({Shard(1).string(), kCodes, "[32, 16]", "[16, 32]"});
}

TEST_F(TensorStoreTest, NamesVectorsOfTheWrongRank) {
  const std::string norm = "language_model.model.layers.1.input_layernorm.weight";
  builder_.FindTensor(norm).shape = {1, 64};
  Write();
  ExpectRejected({norm, "[64]", "[1, 64]"});
}

TEST_F(TensorStoreTest, NamesDecayRatesThatAreTooFew) {
  const std::string name = "language_model.model.layers.1.self_attn.A_log";
  builder_.FindTensor(name).shape = {1};
  builder_.FindTensor(name).bytes.resize(4);
  Write();
  ExpectRejected({name, "at least 2 elements", "[1]"});
}

TEST_F(TensorStoreTest, NamesATensorThatTheIndexHasButTheShardHasNot) {
  const std::string shard = builder_.ShardName(1);
  builder_.EditIndex([=](auto& index) { index["weight_map"][kQuery] = shard; });
  builder_.RemoveTensor(kQuery);
  Write();
  ExpectRejected({Shard(1).string(), kQuery, "found nowhere"});
}

TEST_F(TensorStoreTest, NamesATensorThatLiesInAnotherShard) {
  const std::string other = builder_.ShardName(2);
  builder_.EditIndex([=](auto& index) { index["weight_map"][kQuery] = other; });
  Write();
  ExpectRejected({Shard(1).string(), kQuery, other, "found here"});
}

TEST_F(TensorStoreTest, NamesATensorThatTheIndexLacks) {
  builder_.EditIndex([](auto& index) { index["weight_map"].erase(kCodes); });
  Write();
  ExpectRejected({kIndex, kCodes, "is not named"});
}

TEST_F(TensorStoreTest, NamesATensorThatTheConfigurationDoesNotCallFor) {
  builder_.EditIndex([](auto& index) { index["weight_map"]["language_model.odd"] = "a"; });
  Write();
  ExpectRejected({kIndex, "'language_model.odd'", "does not call for"});
}

TEST_F(TensorStoreTest, NamesAnUnknownTensorOfAShard) {
  builder_.tensors().push_back({"language_model.odd", "BF16", {1}, "ab", 4});
  builder_.EditIndex([](auto& index) { index["weight_map"].erase("language_model.odd"); });
  Write();
  ExpectRejected({Shard(4).string(), "'language_model.odd'", "does not call for"});
}

TEST_F(TensorStoreTest, NamesWhatASingleFileLacks) {
  builder_.RemoveTensor(kCodes);
  builder_.WriteSingleFile(dir_.path());
  ExpectRejected({"model.safetensors", kCodes, "found nowhere"});
}

// The index as a file.

class IndexTest : public TensorStoreTest {
 protected:
  void WriteIndex(const std::string& text) {
    Write();
    WriteText(dir_ / kIndex, text);
  }
};

TEST_F(IndexTest, ReportsWhatItHolds) {
  builder_.EditIndex([](auto& index) { index["weight_map"]["vision_tower.x"] = "v.safetensors"; });
  Write();
  std::filesystem::remove(Shard(0));
  const auto report = TensorStore::CheckIndex(dir_.path(), ReadModelConfig(dir_.path()));
  EXPECT_EQ(report.num_tensors, builder_.tensors().size() + 1);
  EXPECT_EQ(report.num_text_tensors, builder_.tensors().size());
  EXPECT_EQ(report.shards.size(), 7U);
  EXPECT_GT(report.total_size, 100'000U);
}

TEST_F(IndexTest, RejectsTextThatIsNoIndex) {
  for (const char* text : {"", "x", "[]", "{}", "1", "{\"weight_map\":1}", "{\"weight_map\":[]}",
                           "{\"weight_map\":{\"lm_head.weight\":", "{\"weight_map\":{}} x",
                           "{\"weight_map\":{\"vision_tower.x\":{}}}"}) {
    SCOPED_TRACE(text);
    WriteIndex(text);
    ExpectRejected({(dir_ / kIndex).string(), "download it again"});
  }
}

TEST_F(IndexTest, RejectsANulByteAnywhere) {
  Write();
  WriteText(dir_ / kIndex, ReadBytes(dir_ / kIndex) + std::string(1, '\0'));
  ExpectRejected({(dir_ / kIndex).string(), "expected JSON"});
}

TEST_F(IndexTest, RejectsHostileNesting) {
  const std::string lists = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  WriteIndex("{\"metadata\":" + lists + "}");
  ExpectRejected({kIndex, "nested deeper"});
  WriteIndex("{\"weight_map\":" + lists.substr(0, 1000));
  ExpectRejected({kIndex, "expected JSON"});
}

TEST_F(IndexTest, RejectsRepeatedKeys) {
  WriteIndex(R"({"weight_map":{"vision_tower.x":"a","vision_tower.x":"a"}})");
  ExpectRejected({kIndex, "'vision_tower.x'", "twice"});
  WriteIndex(R"({"weight_map":{"language_model.lm_head.weight":"a",)"
             R"("language_model.lm_head.weight":"a"}})");
  ExpectRejected({kIndex, "'language_model.lm_head.weight'", "twice"});
  WriteIndex(R"({"weight_map":{},"weight_map":{}})");
  ExpectRejected({kIndex, "'weight_map'", "twice"});
}

TEST_F(IndexTest, RejectsShardsOutsideTheDirectory) {
  for (const char* shard :
       {"../other.safetensors", "/etc/passwd", "a/b", "a\\\\b", "..", "", "a\\u0000b"}) {
    SCOPED_TRACE(shard);
    WriteIndex(std::string(R"({"weight_map":{"language_model.lm_head.weight":")") + shard + "\"}}");
    ExpectRejected({kIndex, "'language_model.lm_head.weight'", "plain file name"});
  }
}

TEST_F(IndexTest, RejectsEntriesThatAreNoNames) {
  WriteIndex(R"({"weight_map":{"language_model.lm_head.weight":5}})");
  ExpectRejected({kIndex, "'language_model.lm_head.weight'", "name of a shard"});
}

TEST_F(IndexTest, SkipsFieldsThatItDoesNotKnow) {
  builder_.EditIndex([](auto& index) {
    index["metadata"]["more"] = {{"deep", {1, 2, "weight_map"}}};
    index["extra"] = {nullptr, 1.5, {{"weight_map", 2}}};
  });
  Write();
  EXPECT_NO_THROW(OpenDir(dir_.path()));
}

// The fixtures.

TEST(FixtureTest, OpensTheSmallKimiK3) {
  const auto dir = std::filesystem::path(THIMBLE_SOURCE_DIR "/tests/fixtures/k3-small");
  const ModelConfig config = ReadModelConfig(dir);
  const TensorStore store = TensorStore::Open(dir, config);
  EXPECT_EQ(store.files().size(), 14U);
  const auto report = TensorStore::CheckIndex(dir, config);
  EXPECT_EQ(Summarize(config, store).total_bytes, report.total_size);
}

TEST(FixtureTest, OpensTheSmallKimiLinear) {
  const auto dir = std::filesystem::path(THIMBLE_SOURCE_DIR "/tests/fixtures/kimi-linear-small");
  const ModelConfig config = ReadModelConfig(dir);
  const TensorStore store = TensorStore::Open(dir, config);
  EXPECT_EQ(store.files().size(), 12U);
  const auto report = TensorStore::CheckIndex(dir, config);
  EXPECT_EQ(Summarize(config, store).total_bytes, report.total_size);
}

}  // namespace
}  // namespace thimble
