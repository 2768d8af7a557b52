#include "format/model_files.h"

#include <gtest/gtest.h>

#include <string>

#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

class ResolveTest : public testing::Test {
 protected:
  // A model in the form of the hub's cache.
  std::filesystem::path AddCached(const std::string& name, const std::string& commit) {
    const std::filesystem::path model = dir_ / "hub" / name;
    std::filesystem::create_directories(model / "blobs");
    std::filesystem::create_directories(model / "refs");
    std::filesystem::create_directories(model / "snapshots" / commit);
    WriteText(model / "snapshots" / commit / "config.json", "{}");
    return model;
  }

  TempDir dir_;
};

TEST_F(ResolveTest, LeavesADirectoryWithAModelAsItIs) {
  WriteText(dir_ / "config.json", "{}");
  EXPECT_EQ(ResolveModelDirectory(dir_.path()), dir_.path());
  EXPECT_EQ(ResolveModelDirectory(dir_ / "none"), dir_ / "none");
}

TEST_F(ResolveTest, TakesTheSnapshotThatMainNames) {
  const auto model = AddCached("models--org--name", "aaaa");
  AddCached("models--org--name", "bbbb");
  WriteText(model / "refs/main", "bbbb\n");
  EXPECT_EQ(ResolveModelDirectory(model), model / "snapshots/bbbb");
  EXPECT_EQ(ResolveModelDirectory(dir_ / "hub"), model / "snapshots/bbbb");
  EXPECT_EQ(ResolveModelDirectory(dir_.path()), model / "snapshots/bbbb");
}

TEST_F(ResolveTest, TakesTheOnlySnapshot) {
  const auto model = AddCached("models--org--name", "aaaa");
  EXPECT_EQ(ResolveModelDirectory(model), model / "snapshots/aaaa");
}

TEST_F(ResolveTest, NamesTheChoice) {
  const auto model = AddCached("models--org--name", "aaaa");
  AddCached("models--org--name", "bbbb");
  ExpectBadModel({"several snapshots", "aaaa, bbbb"}, [&] { ResolveModelDirectory(model); });
  AddCached("models--org--other", "cccc");
  ExpectBadModel({"several models", "models--org--name, models--org--other"},
                 [&] { ResolveModelDirectory(dir_ / "hub"); });
}

TEST_F(ResolveTest, TheRemedyNamesWhatIsThere) {
  WriteText(dir_ / "model-q4.gguf", "GGUF");
  EXPECT_THAT(MissingFilesRemedy(dir_.path()), testing::HasSubstr("model-q4.gguf"));
  std::filesystem::remove(dir_ / "model-q4.gguf");
  std::filesystem::create_directories(dir_ / "inner");
  WriteText(dir_ / "inner/config.json", "{}");
  EXPECT_THAT(MissingFilesRemedy(dir_.path()), testing::HasSubstr("directories in it: inner"));
}

}  // namespace
}  // namespace thimble
