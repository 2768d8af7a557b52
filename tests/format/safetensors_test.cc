#include "format/safetensors.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/checkpoint_builder.h"
#include "support/expect_error.h"

namespace thimble {
namespace {

constexpr const char* kShard = "shard.safetensors";

// A whole file: length, header as given (not padded), and `data_bytes` bytes of data.
std::string MakeFile(const std::string& header, size_t data_bytes) {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> (8 * i)));
  return file + header + std::string(data_bytes, 'x');
}

std::vector<SafetensorsEntry> Parse(const std::string& file) {
  return ParseSafetensors(file, file.size(), kShard);
}

void ExpectRejected(const std::string& file, std::vector<std::string> parts) {
  parts.push_back(kShard);
  ExpectBadModel(parts, [&] { Parse(file); });
}

// One tensor "w" with these fields, and `data_bytes` of data.
void ExpectTensorRejected(const std::string& fields, size_t data_bytes,
                          std::vector<std::string> parts) {
  parts.push_back("'w'");
  ExpectRejected(MakeFile("{\"w\":{" + fields + "}}", data_bytes), parts);
}

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheirData) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[6,14]},)"
                             R"("a":{"dtype":"BF16","shape":[3,1],"data_offsets":[0,6]}}  )";
  const auto entries = Parse(MakeFile(header, 14));
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].dtype, "BF16");
  EXPECT_EQ(entries[0].shape, (std::vector<uint64_t>{3, 1}));
  EXPECT_EQ(entries[0].begin, 8 + header.size());
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].end, 8 + header.size() + 14);
}

TEST(SafetensorsTest, AcceptsScalarsEmptyTensorsAndEscapedNames) {
  const auto entries =
      Parse(MakeFile(R"({"\u0061\"":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                     R"("none":{"dtype":"U8","shape":[7,0],"data_offsets":[0,0]}})",
                     4));
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].name, "none");
  EXPECT_EQ(entries[1].name, "a\"");
}

TEST(SafetensorsTest, AcceptsNoTensors) { EXPECT_TRUE(Parse(MakeFile("{}", 0)).empty()); }

TEST(SafetensorsTest, RejectsFilesTooShortForALength) {
  ExpectRejected("", {"truncated", "at least 8 bytes", "found 0"});
  ExpectRejected("abc", {"truncated", "found 3"});
}

TEST(SafetensorsTest, RejectsAHeaderLengthBeyondTheFile) {
  std::string file = MakeFile("{}", 0);
  file[7] = '\x7f';
  ExpectRejected(file, {"header of at most 2 bytes", "download it again"});
  file = MakeFile("{}", 0);
  file[0] = 3;
  ExpectRejected(file, {"found the length 3"});
}

TEST(SafetensorsTest, RejectsAHeaderLengthBeyondTheCap) {
  const std::string head = std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}";
  ExpectBadModel({kShard, "100000000", "found the length 100000001"},
                 [&] { ParseSafetensors(head, uint64_t{1} << 40, kShard); });
}

TEST(SafetensorsTest, RejectsHeadersThatAreNotAnObject) {
  ExpectRejected(MakeFile("", 0), {"starts with '{'"});
  ExpectRejected(MakeFile("[]", 0), {"starts with '{'"});
  ExpectRejected(MakeFile(" {}", 0), {"starts with '{'"});
  ExpectRejected(MakeFile("{", 0), {"expected JSON"});
  ExpectRejected(MakeFile("{} x", 0), {"expected JSON"});
  ExpectRejected(MakeFile("{}{}", 0), {"expected JSON"});
  ExpectRejected(MakeFile(std::string("{}\0\0", 4), 0), {"expected JSON"});
  ExpectRejected(MakeFile("{\"\xff\":1}", 0), {"expected JSON"});
}

TEST(SafetensorsTest, RejectsEntriesOfAnotherForm) {
  ExpectRejected(MakeFile(R"({"w":1})", 0), {"'w'"});
  ExpectRejected(MakeFile(R"({"w":[1]})", 0), {"'w'"});
  ExpectTensorRejected(R"("dtype":"U8","shape":{},"data_offsets":[0,0])", 0, {"'shape'"});
  ExpectTensorRejected(R"("dtype":["U8"],"shape":[0],"data_offsets":[0,0])", 0, {"'dtype'"});
  ExpectTensorRejected(R"("dtype":8,"shape":[0],"data_offsets":[0,0])", 0, {"'dtype'"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[[0]],"data_offsets":[0,0])", 0, {"'shape'"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[-1],"data_offsets":[0,0])", 0, {"'shape'"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])", 1, {"'shape'"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[null],"data_offsets":[0,1])", 1, {"'shape'"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[1],"data_offsets":[0])", 1, {"two data_offsets"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,1])", 1, {"found 3"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[1])", 1, {"found fewer"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1)", 1, {"'more'"});
  ExpectTensorRejected(R"("dtype":"U9","shape":[1],"data_offsets":[0,1])", 1, {"'U9'"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])", 1,
                       {"at most 8"});
}

TEST(SafetensorsTest, RejectsMetadataOfAnotherForm) {
  ExpectRejected(MakeFile(R"({"__metadata__":1})", 0), {"__metadata__"});
  ExpectRejected(MakeFile(R"({"__metadata__":{"a":1}})", 0), {"__metadata__"});
  ExpectRejected(MakeFile(R"({"__metadata__":{"a":{}}})", 0), {"__metadata__"});
  ExpectRejected(MakeFile(R"({"__metadata__":{"a":"1","a":"1"}})", 0), {"'a'", "twice"});
  ExpectRejected(MakeFile(R"({"__metadata__":{},"__metadata__":{}})", 0), {"twice"});
}

TEST(SafetensorsTest, RejectsRepeatedNamesAndFields) {
  ExpectRejected(MakeFile(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                          R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                          2),
                 {"'w'", "twice"});
  ExpectTensorRejected(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])", 1,
                       {"'dtype'", "twice"});
}

TEST(SafetensorsTest, RejectsSizesThatDoNotAgree) {
  ExpectTensorRejected(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])", 8,
                       {"need 12 bytes", "span 8"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1, {"ends before"});
  ExpectTensorRejected(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])", 1, {"number of bytes"});
}

TEST(SafetensorsTest, RejectsShapesWhoseProductOverflows) {
  ExpectTensorRejected(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0])", 0,
                       {"9223372036854775808"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0,
                       {"4294967296"});
  ExpectRejected(
      MakeFile(R"({"w":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]}})", 0),
      {"parsing a number"});
  ExpectTensorRejected(
      R"("dtype":"U8","shape":[0],"data_offsets":[18446744073709551615,18446744073709551615])", 0,
      {"beyond the file's 0 bytes"});
}

TEST(SafetensorsTest, RejectsOverlapsAndHoles) {
  ExpectRejected(MakeFile(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
                          7),
                 {"'b'", "overlaps 'a'"});
  ExpectTensorRejected(R"("dtype":"U8","shape":[4],"data_offsets":[2,6])", 6,
                       {"2 unused bytes before"});
}

TEST(SafetensorsTest, TellsTruncationFromTrailingBytes) {
  const std::string header = R"({"w":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})";
  const std::string whole = std::to_string(8 + header.size() + 9);
  ExpectRejected(MakeFile(header, 8), {"truncated", "expected " + whole, "download it again"});
  ExpectRejected(MakeFile(header, 10), {"after its last tensor", "expected " + whole});
}

TEST(SafetensorsTest, RejectsHostileNesting) {
  const std::string open(200'000, '[');
  ExpectRejected(MakeFile("{\"w\":" + open, 0), {"expected JSON"});
  ExpectRejected(MakeFile("{\"w\":" + open + std::string(open.size(), ']') + "}", 0),
                 {"nested deeper"});
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += "\"w\":{";
  ExpectRejected(MakeFile(objects, 0), {"expected JSON"});
}

}  // namespace
}  // namespace thimble
