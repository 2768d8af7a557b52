#include "server/body_room.h"

#include <gtest/gtest.h>

#include <vector>

namespace thimble::server {
namespace {

TEST(BodyRoomTest, GrantsInTurnAndNeverMoreThanThereIs) {
  BodyRoom room(100);
  std::vector<int> granted;
  const auto note = [&](int number) { return [&granted, number] { granted.push_back(number); }; };
  auto first = room.Take(60, note(1));
  auto second = room.Take(60, note(2));
  auto third = room.Take(10, note(3));  // would fit, but is behind the second
  EXPECT_EQ(granted, (std::vector<int>{1}));
  EXPECT_FALSE(third->granted());
  first.reset();
  EXPECT_EQ(granted, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(room.free_bytes(), 30u);
  second.reset();
  third.reset();
  EXPECT_EQ(room.free_bytes(), 100u);
}

TEST(BodyRoomTest, OneThatGivesUpLetsTheNextIn) {
  BodyRoom room(100);
  auto first = room.Take(60, [] {});
  auto second = room.Take(1000, [] {});  // all there is
  auto third = room.Take(40, [] {});
  EXPECT_FALSE(third->granted());
  second.reset();
  EXPECT_TRUE(third->granted());
  auto fourth = room.Take(1000, [] {});
  first.reset();
  EXPECT_FALSE(fourth->granted());
  third.reset();
  EXPECT_TRUE(fourth->granted());
  EXPECT_EQ(room.free_bytes(), 0u);
}

}  // namespace
}  // namespace thimble::server
