#include "server/access.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace thimble::server {
namespace {

AccessPolicy Policy(std::vector<std::string> allowed = {}, const std::string& origin = {}) {
  return AccessPolicy({"0.0.0.0", {"box", "box.local", "host.docker.internal"}, allowed, origin});
}

TEST(AccessTest, KnowsAddressesAndItsOwnNames) {
  for (const char* host :
       {"127.0.0.1", "127.0.0.1:8080", "192.168.1.7:8080", "[::1]:8080", "[fe80::1%25eth0]:80",
        "localhost", "LocalHost:8080", "app.localhost:1", "box:8080", "Box", "box.local",
        "box.local.:8080", "host.docker.internal:8080", ""}) {
    EXPECT_TRUE(Policy().AllowsHost(host)) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8080", "localhost.evil.example",
                           "127.0.0.1.evil.example", "notbox.local", "box.evil.example", ":8080",
                           "[evil.example]", "[::1].evil.example", "[", "."}) {
    EXPECT_FALSE(Policy().AllowsHost(host)) << host;
  }
}

TEST(AccessTest, KnowsTheNameItIsBoundTo) {
  const AccessPolicy policy({"Gpu7.example.org", {}, {}, {}});
  EXPECT_TRUE(policy.AllowsHost("gpu7.example.org:8080"));
  EXPECT_FALSE(policy.AllowsHost("example.org"));
}

TEST(AccessTest, FurtherNamesCanBeAllowed) {
  const AccessPolicy policy = Policy({ParseAllowedHost("LLM.example.org:8080"),
                                      ParseAllowedHost("*.lan"), ParseAllowedHost("thimble")});
  EXPECT_TRUE(policy.AllowsHost("llm.example.org"));
  EXPECT_TRUE(policy.AllowsHost("thimble:8080"));
  EXPECT_TRUE(policy.AllowsHost("a.b.lan:80"));
  EXPECT_FALSE(policy.AllowsHost("lan"));
  EXPECT_FALSE(policy.AllowsHost("evilthimble"));
  EXPECT_FALSE(policy.AllowsHost("x.llm.example.org"));
  EXPECT_TRUE(Policy({ParseAllowedHost("*")}).AllowsHost("evil.example"));
}

TEST(AccessTest, WhatIsNoHostNameIsRefused) {
  for (const char* text : {"", ".", "http://x.example", "a b", "x/y", "*x", "[", "*."}) {
    EXPECT_THROW(ParseAllowedHost(text), Error) << text;
  }
}

TEST(AccessTest, PagesOfThisServerMayCallIt) {
  for (const auto& [origin, host] : {std::pair{"http://192.168.1.7:8080", "192.168.1.7:8080"},
                                     {"http://box.local:8080", "BOX.local:8080"},
                                     {"http://box", "box:80"},
                                     {"http://box:80", "box"},
                                     {"https://box", "box"},
                                     {"http://[fe80::1]:8080", "[fe80::1]:8080"},
                                     {"http://localhost:3000", "127.0.0.1:8080"}}) {
    EXPECT_TRUE(Policy().AllowsOrigin(origin, host)) << origin;
  }
  for (const auto& [origin, host] : {std::pair{"http://192.168.1.7:8081", "192.168.1.7:8080"},
                                     {"http://192.168.1.8:8080", "192.168.1.7:8080"},
                                     {"https://evil.example", "192.168.1.7:8080"},
                                     {"http://evil.example:8080", "evil.example:8080"},
                                     {"http://box:8080", "box"},
                                     {"null", "box"},
                                     {"app://box", "box"},
                                     {"http://", ""}}) {
    EXPECT_FALSE(Policy().AllowsOrigin(origin, host)) << origin;
  }
}

TEST(AccessTest, PagesOfOtherSitesNeedLeave) {
  EXPECT_TRUE(Policy({}, "https://ui.example").AllowsOrigin("https://ui.example", "box"));
  EXPECT_FALSE(Policy({}, "https://ui.example").AllowsOrigin("https://ui.example.evil", "box"));
  EXPECT_TRUE(Policy({}, "*").AllowsOrigin("https://any.example", "box"));
  EXPECT_TRUE(Policy({}, "*").AllowsOrigin("null", "box"));
}

TEST(AccessTest, AnOriginIsWhatBrowsersSend) {
  EXPECT_EQ(ParseAllowedOrigin("https://UI.example:8443/"), "https://ui.example:8443");
  EXPECT_EQ(ParseAllowedOrigin("app://obsidian.md"), "app://obsidian.md");
  EXPECT_EQ(ParseAllowedOrigin("*"), "*");
  for (const char* text : {"", "ui.example", "https://", "://x", "https://x/y", "https://a, b"}) {
    EXPECT_THROW(ParseAllowedOrigin(text), Error) << text;
  }
}

TEST(AccessTest, ThisMachineHasNames) {
  std::array<char, 256> name = {};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  std::string own = name.data();
  std::ranges::transform(own, own.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::vector<std::string> names = NamesOfThisMachine();
  const auto has = [&](const std::string& other) {
    return std::ranges::find(names, other) != names.end();
  };
  EXPECT_TRUE(has(own));
  EXPECT_TRUE(has(own.substr(0, own.find('.')) + ".local"));
  EXPECT_TRUE(has("host.docker.internal"));
}

}  // namespace
}  // namespace thimble::server
