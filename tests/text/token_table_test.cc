#include "text/token_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace thimble {
namespace {

TEST(TokenTableTest, StartsEmpty) {
  const TokenTable table;
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.Find(""), std::nullopt);
  EXPECT_EQ(table.Find("a"), std::nullopt);
}

TEST(TokenTableTest, AgreesWithAMap) {
  TokenTable table;
  std::map<std::string, TokenId> map;
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes;
    for (size_t length = random() % 6; length > 0; --length) {
      bytes += static_cast<char>(random() % 8);
    }
    const bool added = map.emplace(bytes, table.size()).second;
    ASSERT_EQ(table.Add(bytes), added);
  }
  ASSERT_EQ(table.size(), map.size());
  EXPECT_EQ(table.longest(), 5u);
  for (const auto& [bytes, id] : map) {
    ASSERT_EQ(table.Find(bytes), id);
    ASSERT_EQ(table[id], bytes);
  }
  EXPECT_EQ(table.Find("\x09"), std::nullopt);
  EXPECT_GT(table.memory_bytes(), map.size() * 12);
}

}  // namespace
}  // namespace thimble
