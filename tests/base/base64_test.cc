#include "base/base64.h"

#include <gtest/gtest.h>

#include <string>

namespace thimble {
namespace {

TEST(Base64Test, DecodesWhatIsCanonicalAndRefusesTheRest) {
  const std::pair<const char*, const char*> texts[] = {
      {"", ""}, {"Zg==", "f"}, {"Zm8=", "fo"}, {"Zm9v", "foo"}, {"+/+/", "\xfb\xff\xbf"}};
  std::string bytes;
  for (const auto& [base64, plain] : texts) {
    EXPECT_TRUE(DecodeBase64(base64, &bytes)) << base64;
    EXPECT_EQ(bytes, plain);
  }
  for (const char* wrong : {"Zg", "Zg=", "Zh==", "Zm9=", "Z===", "Zm9v\n", "Zm-_", "===="}) {
    EXPECT_FALSE(DecodeBase64(wrong, &bytes)) << wrong;
  }
}

}  // namespace
}  // namespace thimble
