#include "base/byte_size.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace thimble {
namespace {

TEST(ParseByteSize, ReadsSizesAsPeopleWriteThem) {
  const struct {
    const char* text;
    uint64_t bytes;
  } cases[] = {
      {"0", 0},
      {"1", 1},
      {"4096", 4096},
      {"512B", 512},
      {"512b", 512},
      {"2K", 2000},
      {"2k", 2000},
      {"2KB", 2000},
      {"2KiB", 2048},
      {"2ki", 2048},
      {"3M", 3 * kMB},
      {"3mib", 3 * kMiB},
      {"1.5G", 1'500'000'000},
      {"1.5GB", 1'500'000'000},
      {"1.5GiB", 1'610'612'736},
      {"8GiB", 8 * kGiB},
      {".5G", 500 * kMB},
      {"0.25KiB", 256},
      {"1.2345K", 1235},
      {"2T", 2'000 * kGB},
      {"2TiB", 2'048 * kGiB},
      {"0.1", 0},
      {"9007199254740992", uint64_t{1} << 53},
      {"8388607TiB", (uint64_t{1} << 63) - (uint64_t{1} << 40)},
  };
  for (const auto& item : cases) EXPECT_EQ(ParseByteSize(item.text), item.bytes) << item.text;
}

TEST(ParseByteSize, RefusesWhatIsNoSize) {
  for (const char* text :
       {"",    " ",   "G",    "GB",   "-1",   "-0",     "-1.5G", "+1",   "1 GB", " 1G",
        "1G ", "1P",  "1E",   "1e3",  "1GBs", "1iB",    "1Bi",   "1BB",  "1,5G", "0x10",
        "inf", "nan", "infG", "1..5", "1G1",  "1.5.2G", "KiB",   "1GGB", "--1",  "1Gi B"}) {
    EXPECT_EQ(ParseByteSize(text), std::nullopt) << "'" << text << "'";
  }
}

TEST(ParseByteSize, RefusesWhatDoesNotFit63Bits) {
  for (const char* text : {"8388608TiB", "9223372036854775808", "10000000T", "1e999",
                           "99999999999999999999999999999999999999"}) {
    EXPECT_EQ(ParseByteSize(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseByteSize(std::string(400, '9')), std::nullopt);
}

TEST(FormatBytes, GivesThreeDigitsAndAUnit) {
  const struct {
    uint64_t bytes;
    const char* text;
  } cases[] = {
      {0, "0 B"},
      {1, "1 B"},
      {512, "512 B"},
      {999, "999 B"},
      {1000, "1.00 kB"},
      {1005, "1.00 kB"},
      {9'994, "9.99 kB"},
      {9'995, "10.0 kB"},
      {17'500, "17.5 kB"},
      {99'949, "99.9 kB"},
      {99'950, "100 kB"},
      {999'499, "999 kB"},
      {999'500, "1.00 MB"},
      {17'547'264, "17.5 MB"},
      {1'500'000'000, "1.50 GB"},
      {1'560'000'000'000, "1.56 TB"},
      {1'560'000'000'000'000, "1560 TB"},
      {UINT64_MAX, "18446744 TB"},
  };
  for (const auto& item : cases) EXPECT_EQ(FormatBytes(item.bytes), item.text) << item.bytes;
}

TEST(FormatBytes, IsReadBackWithinHalfAPercent) {
  for (uint64_t bytes = 1; bytes < uint64_t{1} << 61; bytes = bytes * 3 + 1) {
    std::string text = FormatBytes(bytes);
    text.erase(text.find(' '), 1);
    const auto parsed = ParseByteSize(text);
    ASSERT_TRUE(parsed) << text;
    const auto exact = static_cast<double>(bytes);
    EXPECT_NEAR(static_cast<double>(*parsed), exact, exact * 0.00501) << text;
  }
}

}  // namespace
}  // namespace thimble
