#include "format/container.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "format/checksum.h"
#include "format/published_models.h"
#include "format/tensor_store.h"
#include "pack/pack.h"
#include "support/checkpoint_builder.h"
#include "support/directory_bytes.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kHead = 32;
constexpr size_t kRecord = 24;

// A small packed model, to be damaged.
class ContainerTest : public testing::Test {
 protected:
  ContainerTest() {
    std::filesystem::create_directory(dir_ / "model");
    CheckpointBuilder::KimiK3().Write(dir_ / "model");
    PackModel(dir_ / "model", {dir()}, {}, nullptr);
    config_ = ReadModelConfig(dir());
  }

  // Puts a packed model with BF16 experts in its place.
  void PackKimiLinear() {
    const auto linear = dir_ / "linear";
    std::filesystem::create_directory(linear);
    CheckpointBuilder::KimiLinear().Write(linear);
    std::filesystem::remove_all(dir());
    PackModel(linear, {dir()}, {}, nullptr);
    config_ = ReadModelConfig(dir());
  }

  std::filesystem::path dir() const { return dir_ / "packed"; }
  std::filesystem::path table() const { return dir() / kExtentTableFile; }
  Json Manifest() const { return Json::parse(ReadBytes(dir() / kManifestFile)); }

  // Opening fails, and all of `parts` are in the message, after the manifest is edited. Then all is
  // as it was.
  void ExpectRejected(const std::vector<std::string>& parts,
                      const std::function<void(Json&)>& edit) {
    const std::string text = ReadBytes(dir() / kManifestFile);
    Json json = Json::parse(text);
    edit(json);
    WriteText(dir() / kManifestFile, json.dump());
    ExpectOpenFails(parts);
    WriteText(dir() / kManifestFile, text);
  }

  // The same after a number of the extent table is set; its checksum is made to fit.
  void ExpectTableRejected(const std::vector<std::string>& parts, size_t at, uint64_t value) {
    const std::string bytes = ReadBytes(table());
    std::string edited = bytes;
    std::memcpy(edited.data() + at, &value, sizeof(value));
    WriteText(table(), edited);
    ExpectRejected(parts, [&](Json& json) {
      json["extents"]["checksum"] = FormatChecksum(ChecksumOf(edited));
    });
    WriteText(table(), bytes);
  }

  void ExpectOpenFails(const std::vector<std::string>& parts) {
    ExpectBadModel(parts, [&] { TensorStore::Open(dir(), config_); });
  }

  TempDir dir_;
  ModelConfig config_;
};

TEST_F(ContainerTest, ChecksumsAreXxh3) {
  EXPECT_EQ(ChecksumOf(""), 0x2d06800538d394c2U);
  Checksum pieces;
  pieces.Update("ab", 2);
  pieces.Update("c", 1);
  EXPECT_EQ(pieces.Digest(), ChecksumOf("abc"));
  EXPECT_EQ(FormatChecksum(0x1f), "000000000000001f");
}

TEST_F(ContainerTest, TheTrunkLiesInReadingOrderAndExpertsInOnePieceEach) {
  const TensorStore store = TensorStore::Open(dir(), config_);
  uint64_t end = 0;
  for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
    const auto specs = LayerTensors(config_, config_.layers[layer]);
    for (size_t i = 0; i < specs.size(); ++i) {
      const TensorExtent& extent = store.Layer(layer, specs[i].role);
      EXPECT_EQ(extent.file, 0U);
      if (i == 0) {
        EXPECT_EQ(extent.offset % kContainerAlignment, 0U);
        EXPECT_GE(extent.offset, end);
      } else {
        EXPECT_EQ(extent.offset, end);
      }
      end = extent.offset + extent.Bytes();
    }
  }
  const ExpertExtent expert = store.Expert(2, 3);
  EXPECT_EQ(expert[0].offset % kContainerAlignment, 0U);
  uint64_t expert_end = expert[0].offset;
  for (const size_t tensor : {0U, 2U, 4U, 1U, 3U, 5U}) {  // codes, then scales
    EXPECT_EQ(expert[tensor].offset, expert_end);
    expert_end += expert[tensor].bytes;
  }
}

TEST_F(ContainerTest, TextAndTableSurviveARoundTrip) {
  const Container container = OpenContainer(dir(), config_);
  EXPECT_EQ(ManifestText(container.manifest), ReadBytes(dir() / kManifestFile));
  EXPECT_EQ(ExtentTableBytes(container.table), ReadBytes(table()));
}

TEST_F(ContainerTest, ManifestsOfAnotherKindOrVersion) {
  ExpectRejected({"manifest.json", "format", "thimble-container", "other"},
                 [](Json& json) { json["format"] = "other"; });
  ExpectRejected({"version 3", "found version 2", "pack the model again"},
                 [](Json& json) { json["version"] = 2; });
  ExpectRejected({"version 3", "found version 4"}, [](Json& json) { json["version"] = 4; });
  ExpectRejected({"source"}, [](Json& json) { json.erase("source"); });
  ExpectRejected({"kimi_linear", "kimi_k3"},
                 [](Json& json) { json["architecture"] = "kimi_linear"; });
  WriteText(dir() / kManifestFile, ReadBytes(dir() / kManifestFile).substr(0, 1000));
  ExpectOpenFails({"manifest.json", "JSON"});
}

TEST_F(ContainerTest, FilesAndDirectories) {
  ExpectRejected({"name", "plain"}, [](Json& json) { json["files"][0]["name"] = "../core.bin"; });
  ExpectRejected({"name", "once"},
                 [](Json& json) { json["files"][1]["name"] = json["files"][0]["name"]; });
  ExpectRejected({"elsewhere.bin", "missing"},
                 [](Json& json) { json["files"][1]["name"] = "elsewhere.bin"; });
  ExpectRejected({"size"}, [](Json& json) { json["files"][0]["size"] = uint64_t{1} << 60; });
  ExpectRejected({"core.bin", "manifest gives it"}, [](Json& json) {
    json["files"][0]["size"] = json["files"][0]["size"].get<uint64_t>() + 4096;
  });
  ExpectRejected({"passes the end of core.bin"}, [](Json& json) { json["files"][0]["size"] = 64; });
  ExpectRejected({"directory"}, [](Json& json) { json["files"][0]["directory"] = 1; });
  ExpectRejected({"directories"}, [](Json& json) { json["directories"] = {"/"}; });
  ExpectRejected({"absolute"}, [](Json& json) { json["directories"] = {".", "../x"}; });
  ExpectRejected({"files"}, [](Json& json) { json["files"].erase(4); });
  Truncate(dir() / "core.bin", 10);
  ExpectOpenFails({"core.bin", "truncated", "expected"});
}

TEST_F(ContainerTest, LayersTensorsAndExperts) {
  ExpectRejected({"layers", "5", "4"}, [](Json& json) { json["layers"].erase(4); });
  ExpectRejected({"layer 1", "tensors"}, [](Json& json) { json["layers"][1]["tensors"].erase(0); });
  ExpectRejected({"layer 1", "input_layernorm.weight", "[1, 65]"}, [](Json& json) {
    json["layers"][1]["tensors"][0]["shape"] = {1, 65};
  });
  ExpectRejected({"dtype", "U8"},
                 [](Json& json) { json["layers"][1]["tensors"][0]["dtype"] = "U8"; });
  ExpectRejected({"layers[1].tensors[0].shape"}, [](Json& json) {
    json["layers"][1]["tensors"][0]["shape"] = {1, 1, 64};
  });
  ExpectRejected({"bytes", "need"},
                 [](Json& json) { json["layers"][1]["tensors"][0]["dtype"] = "F32"; });
  ExpectRejected({"layer 2", "experts", "0"},
                 [](Json& json) { json["layers"][2].erase("experts"); });
  ExpectRejected({"layer 0", "experts"},
                 [](Json& json) { json["layers"][0]["experts"] = json["layers"][1]["experts"]; });
  ExpectRejected({"experts.extent"},
                 [](Json& json) { json["layers"][1]["experts"]["extent"] = 1 << 30; });
  ExpectRejected({"distinct"}, [](Json& json) { json["layers"][1]["experts"]["distinct"] = 1000; });
  ExpectRejected({"layer 1", "3 of 8 experts", "shared_extents"},
                 [](Json& json) { json["layers"][1]["experts"]["distinct"] = 3; });
  ExpectRejected({"at most", "extents"}, [](Json& json) { json["extents"]["count"] = 60'000'000; });
  ExpectRejected({"globals"}, [](Json& json) { json.erase("globals"); });
}

TEST_F(ContainerTest, SharingMustBeSaid) {
  ExpectRejected({"shared_extents", "no extent"},
                 [](Json& json) { json["shared_extents"] = true; });
  ExpectRejected({"used by nothing"}, [](Json& json) {
    json["layers"][2]["experts"] = json["layers"][1]["experts"];
    json["shared_extents"] = true;
  });
  ExpectRejected({"kinds or sizes"}, [](Json& json) {
    json["layers"][1]["extent"] = json["layers"][1]["experts"]["extent"];
  });
}

TEST_F(ContainerTest, ExtentTables) {
  const uint64_t first = OpenContainer(dir(), config_).table.extents[1].offset;
  ExpectTableRejected({"extents.bin", "extent 1", "starts at byte"}, kHead + kRecord, first + 4096);
  ExpectTableRejected({"extent 1", "starts at byte 0"}, kHead + kRecord, 0);
  ExpectTableRejected({"extent 1", "bytes", "need"}, kHead + kRecord + 8, UINT64_MAX);
  ExpectTableRejected({"extent 1", "lies in file 9"}, kHead + kRecord, uint64_t{9} << 48);
  ExpectTableRejected({"extent table of version 3"}, 0, 0);
  ExpectTableRejected({"extent table of version 3"}, 16, 3);
  ExpectTableRejected({"extent table of version 3"}, 24, 3);
  FlipBit(table(), kHead + 16);
  ExpectOpenFails({"extents.bin", "checksum"});
  Truncate(table(), 1);
  ExpectOpenFails({"extents.bin", "truncated"});
  std::filesystem::remove(table());
  ExpectOpenFails({"extents.bin", "missing"});
}

TEST_F(ContainerTest, CodedTensors) {
  const Container container = OpenContainer(dir(), config_);
  size_t coded = 0;
  while (TensorOf(container.uses[coded], container.manifest)->group_rows == 0) ++coded;
  const uint64_t bytes = container.table.extents[coded].bytes;
  EXPECT_LT(bytes, container.uses[coded].bytes);
  const std::string name = "extent " + std::to_string(coded);
  const size_t groups = kHead + container.table.extents.size() * kRecord;
  ExpectTableRejected({name, "group 0", "impossible"}, groups, 0);
  ExpectTableRejected({name, "group 0", "impossible"}, groups, 1 << 30);
  ExpectTableRejected({name, "its groups have"}, groups, bytes - 1);

  const auto edit_coded = [](const char* key, const Json& value) {
    return [key, value](Json& json) {
      for (Json& tensor : json["layers"][1]["tensors"]) {
        if (tensor.contains("group_rows")) {
          tensor[key] = value;
          return;
        }
      }
    };
  };
  ExpectRejected({"group_rows"}, edit_coded("group_rows", 100000));
  ExpectRejected({"group_rows", "BF16"}, edit_coded("dtype", "F32"));
  ExpectRejected({"bytes"}, edit_coded("group_rows", 1));
  ExpectRejected({"model.embed_tokens.weight", "coded"},
                 [](Json& json) { json["globals"][0]["group_rows"] = 1; });
}

TEST_F(ContainerTest, CodedScales) {
  const Container container = OpenContainer(dir(), config_);
  EXPECT_TRUE(container.manifest.coded_scales);
  const size_t first = container.manifest.layers[1].first_expert;
  const uint64_t plain = container.uses[first].bytes;
  const uint64_t scales = plain / 17;
  EXPECT_EQ(ScalesOffset(container.uses[first]), plain - scales);
  EXPECT_LT(container.table.extents[first].bytes, plain - scales / 2);
  const std::string name = "extent " + std::to_string(first);
  const size_t size = kHead + first * kRecord + 8;
  ExpectTableRejected({name, "bytes", "need"}, size, plain - scales);
  ExpectTableRejected({name, "bytes", "need"}, size, plain + 1);
  ExpectTableRejected({name, "bytes", "need"}, size, UINT64_MAX);
  ExpectRejected({name, "bytes", "need"}, [](Json& json) { json.erase("coded_scales"); });
  ExpectRejected({"coded_scales"}, [](Json& json) { json["coded_scales"] = 1; });
  const ExpertExtent expert = TensorStore::Open(dir(), config_).Expert(1, 0);
  EXPECT_EQ(expert.ScaleBytes(), scales);
  EXPECT_EQ(expert.StoredBytes(), container.table.extents[first].bytes);
  EXPECT_EQ(expert.coded_scale_bytes, expert.StoredBytes() - (plain - scales));
}

TEST_F(ContainerTest, ScalesThatAreCodedMustBeThere) {
  PackKimiLinear();
  EXPECT_FALSE(Manifest().contains("coded_scales"));
  ExpectRejected({"coded scales", "config.json"}, [](Json& json) { json["coded_scales"] = true; });
}

// Else the fuzzer would start from what is refused at its first field.
TEST_F(ContainerTest, TheFuzzersCorpusHasSoundContainers) {
  const std::filesystem::path corpus = THIMBLE_SOURCE_DIR "/fuzz/corpus/manifest";
  const ModelConfig config =
      ParseModelConfig(PublishedConfig("k3-small", {.layers = 2, .experts = 2}), "config.json");
  for (const char* name : {"valid", "coded"}) {
    const std::string input = ReadBytes(corpus / name);
    const size_t end = input.find('\0');
    ContainerManifest manifest = ParseManifest(input.substr(0, end), name);
    const std::string bytes = input.substr(end + 1);
    manifest.table_checksum = ChecksumOf(bytes);
    const auto uses = ExtentUses(manifest, config, name);
    EXPECT_EQ(ParseExtentTable(bytes, manifest, uses, name).extents.size(), uses.size()) << name;
  }
}

TEST_F(ContainerTest, WhatIsLossyIsReadAndWrittenAsItIs) {
  const Json lossy = {{"part", "experts"}, {"format", "mxfp4"}, {"relative_error", 0.104567}};
  Json json = Manifest();
  EXPECT_FALSE(json.contains("lossy"));
  json["lossy"] = {lossy};
  const ContainerManifest manifest = ParseManifest(json.dump(), "m");
  ASSERT_EQ(manifest.lossy.size(), 1U);
  EXPECT_EQ(manifest.lossy[0].part, "experts");
  EXPECT_EQ(manifest.lossy[0].format, "mxfp4");
  EXPECT_FLOAT_EQ(manifest.lossy[0].relative_error, 0.104567F);
  EXPECT_EQ(Json::parse(ManifestText(manifest))["lossy"], Json({lossy}));
  Json trunk = lossy;
  trunk["part"] = "trunk";
  ExpectRejected({"format", "q8"}, [&](Json& edited) { edited["lossy"] = {trunk}; });
  trunk["format"] = "q8";
  ExpectRejected({"trunk", "no Q8"}, [&](Json& edited) { edited["lossy"] = {lossy, trunk}; });
  const auto with = [&](const char* key, const Json& value) {
    return [=](Json& edited) {
      edited["lossy"] = {lossy};
      edited["lossy"][0][key] = value;
    };
  };
  ExpectRejected({"part", "experts"}, with("part", "norms"));
  ExpectRejected({"format", "mxfp4"}, with("format", "int3"));
  ExpectRejected({"relative_error"}, with("relative_error", -0.1));
  ExpectRejected({"part", "once"}, [&](Json& edited) { edited["lossy"] = {lossy, lossy}; });
}

TEST_F(ContainerTest, ExpertsThatAreCalledQuantisedMustBe) {
  PackKimiLinear();
  ExpectRejected({"quantised", "config.json"}, [](Json& json) {
    json["lossy"] = {{{"part", "experts"}, {"format", "mxfp4"}, {"relative_error", 0.1}}};
  });
}

TEST_F(ContainerTest, Q8Tensors) {
  std::filesystem::remove_all(dir());
  WriteOptions options;
  options.q8_trunk = true;
  PackModel(dir_ / "model", {dir()}, options, nullptr);
  size_t quantized = 0;
  const TensorStore store = TensorStore::Open(dir(), config_);
  for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
    for (const TensorSpec& spec : LayerTensors(config_, config_.layers[layer])) {
      const TensorExtent& extent = store.Layer(layer, spec.role);
      const bool expected = MayBeQuantized(spec.role) && spec.cols % 32 == 0;
      ASSERT_EQ(extent.dtype == DType::kQ8, expected) << spec.name;
      if (!expected) continue;
      EXPECT_EQ(extent.Bytes(), spec.rows * (spec.cols + spec.cols / 16));
      ++quantized;
    }
  }
  EXPECT_GT(quantized, 20U);
  EXPECT_EQ(store.Global(TensorRole::kHead).dtype, DType::kQ8);
  EXPECT_EQ(store.Global(TensorRole::kEmbedding).dtype, DType::kBF16);
  ExpectRejected({"Q8", "lossy"}, [](Json& json) { json.erase("lossy"); });
  const auto rename = [](const char* from, const char* to) {
    return [=](Json& json) {
      for (Json& tensor : json["layers"][1]["tensors"]) {
        if (tensor["dtype"] == from) {
          tensor["dtype"] = to;
          return;
        }
      }
    };
  };
  ExpectRejected({"Q8"}, rename("F32", "Q8"));
  ExpectRejected({"group_rows"}, [](Json& json) {
    for (Json& tensor : json["layers"][1]["tensors"]) {
      if (tensor["dtype"] == "Q8") tensor["group_rows"] = 1;
    }
  });
  ExpectRejected({"model.embed_tokens.weight", "Q8"},
                 [](Json& json) { json["globals"][0]["dtype"] = "Q8"; });
}

TEST_F(ContainerTest, TheConfigurationOfAnotherModelIsRefused) {
  const auto other = dir_ / "other";
  std::filesystem::create_directory(other);
  CheckpointBuilder::KimiK3({.hidden = 96}).Write(other);
  config_ = ReadModelConfig(other);
  ExpectOpenFails({"manifest.json", "config.json", "96"});
}

}  // namespace
}  // namespace thimble
