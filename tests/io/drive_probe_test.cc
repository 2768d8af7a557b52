#include "io/drive_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/aligned_memory.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

class DriveProbeTest : public testing::Test {
 protected:
  std::span<std::byte> scratch() { return {memory_.data(), kProbeScratchBytes}; }

  // Either a figure and what it stands for, or a reason; never both.
  static void ExpectSound(const DriveProbe& probe, uint64_t most_bytes) {
    EXPECT_EQ(probe.bytes_per_s.has_value(), probe.obstacle.empty());
    if (!probe.bytes_per_s) return;
    EXPECT_GE(probe.read_bytes, kProbeReadBytes);
    EXPECT_LE(probe.read_bytes, most_bytes);
    EXPECT_NEAR(*probe.bytes_per_s * probe.seconds, static_cast<double>(probe.read_bytes), 1);
  }

  TempDir dir_;
  AlignedMemory memory_{kProbeScratchBytes};
};

TEST_F(DriveProbeTest, FilesAreMeasuredOrRefused) {
  // The end of the second is no whole read, and stays unread.
  WriteText(dir_ / "a", std::string(3 * kProbeReadBytes, 'a'));
  WriteText(dir_ / "b", std::string(2 * kProbeReadBytes + 17, 'b'));
  const DriveProbe probe = ProbeDrive({dir_ / "a", dir_ / "b"}, scratch());
  ExpectSound(probe, 5 * kProbeReadBytes);
  EXPECT_FALSE(probe.too_small);
}

// O_DIRECT is taken, and no drive is asked.
TEST_F(DriveProbeTest, HolesSayNothingOfADrive) {
  WriteText(dir_ / "holes", "");
  std::filesystem::resize_file(dir_ / "holes", 16 * kProbeReadBytes);
  const DriveProbe probe = ProbeDrive({dir_ / "holes"}, scratch());
  EXPECT_FALSE(probe.bytes_per_s.has_value());
  EXPECT_THAT(probe.obstacle, testing::Not(testing::IsEmpty()));
}

TEST_F(DriveProbeTest, FillingStopsWhenToldTo) {
  ProbeFile file(dir_.path());
  size_t asked = 0;
  ExpectError(ErrorCode::kInterrupted, {"stopped"},
              [&] { file.Fill(uint64_t{1} << 40, scratch(), [&] { return ++asked < 3; }); });
  EXPECT_EQ(asked, 3U);
}

TEST_F(DriveProbeTest, SmallFilesSayNothingOfADrive) {
  WriteText(dir_ / "a", std::string(kProbeReadBytes, 'a'));
  const DriveProbe probe = ProbeDrive({dir_ / "a"}, scratch());
  EXPECT_FALSE(probe.bytes_per_s.has_value());
  EXPECT_THAT(probe.obstacle, testing::Not(testing::IsEmpty()));
}

TEST_F(DriveProbeTest, TheProbeFileLeavesNothing) {
  ExpectSound(ProbeDriveOf(dir_.path(), kLeastProbeBytes, scratch()), kLeastProbeBytes);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(DriveProbeTest, MemoryIsNoDrive) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
  const DriveProbe probe = ProbeDriveOf("/dev/shm", kLeastProbeBytes, scratch());
  EXPECT_FALSE(probe.bytes_per_s.has_value());
  EXPECT_THAT(probe.obstacle, testing::HasSubstr("memory"));
}

TEST_F(DriveProbeTest, NamesWhatCannotBeOpenedOrWritten) {
  ExpectBadModel({(dir_ / "nothing").string()}, [&] { ProbeDrive({dir_ / "nothing"}, scratch()); });
  ExpectError(ErrorCode::kRuntime, {(dir_ / "nowhere").string(), "No such file"},
              [&] { ProbeDriveOf(dir_ / "nowhere", kLeastProbeBytes, scratch()); });
}

}  // namespace
}  // namespace thimble
