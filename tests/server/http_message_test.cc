#include "server/http_message.h"

#include <gtest/gtest.h>

#include "server/api.h"
#include "server/routes.h"

namespace thimble::server {
namespace {

TEST(HttpMessageTest, PathsHaveOneSpelling) {
  for (const auto& [target, path] : {std::pair{"/v1/chat/completions", "/chat/completions"},
                                     {"/chat/completions/", "/chat/completions"},
                                     {"//v1//chat///completions//?x=/v1/", "/chat/completions"},
                                     {"/v1/v1/messages?beta=true", "/messages"},
                                     {"http://127.0.0.1:8080/v1/models#x", "/models"},
                                     {"http://127.0.0.1:8080", "/"},
                                     {"/v1/models/org%2Fname", "/models/org/name"},
                                     {"/v1/models/50%", "/models/50%"},
                                     {"/v1", "/v1"},
                                     {"/", "/"},
                                     {"", ""},
                                     {"*", "*"},
                                     {"/v10/models", "/v10/models"}}) {
    EXPECT_EQ(PlainPath(target), path) << target;
  }
}

TEST(HttpMessageTest, HeadersAreFoundInAnyCase) {
  HttpRequest request;
  request.headers = {{"Content-Type", "a"}, {"X-Api-Key", "b"}};
  EXPECT_EQ(request.Header("x-api-key"), "b");
  EXPECT_EQ(request.Header("X-API-Ke"), "");
}

TEST(HttpMessageTest, EachPathTakesItsMethod) {
  const auto status = [](const char* method, const char* path) {
    HttpRequest request;
    request.method = method;
    request.target = path;
    request.path = PlainPath(path);
    try {
      FindEndpoint(request);
    } catch (const ApiError& error) {
      return error.status();
    }
    return 200;
  };
  EXPECT_EQ(status("GET", "/v1/models/a/b"), 200);
  EXPECT_EQ(status("HEAD", "/"), 200);
  EXPECT_EQ(status("POST", "/responses"), 200);
  EXPECT_EQ(status("GET", "/v1/responses"), 405);
  EXPECT_EQ(status("HEAD", "/v1/responses"), 405);
  EXPECT_EQ(status("PUT", "/v1/models"), 405);
  EXPECT_EQ(status("BREW", "/v1/chat/completions"), 405);
  EXPECT_EQ(status("POST", "/v1/responses/abc"), 404);
  EXPECT_EQ(status("GET", "/v1"), 404);
  EXPECT_EQ(AllowedMethods("/messages"), "POST, OPTIONS");
  EXPECT_EQ(AllowedMethods("/nothing"), "");
}

}  // namespace
}  // namespace thimble::server
