#include "base/process_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "base/start_thread.h"
#include "base/thread_pool.h"
#include "support/sanitizers.h"
#include "support/system_tree_builder.h"

namespace thimble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExplainLimits, NamesTheLimitAndTheCommandThatRaisesIt) {
  ProcessLimits limits;
  limits.address_space = 500'000'000;
  limits.open_files = 16;
  limits.user_threads = 40;
  limits.group_threads = 30;
  limits.file_bytes = 1'000'000;
  EXPECT_THAT(ExplainMemoryLimits(limits),
              AllOf(HasSubstr("address space"), HasSubstr("500 MB"), HasSubstr("ulimit -v")));
  EXPECT_THAT(ExplainThreadLimits(limits),
              AllOf(HasSubstr("ulimit -u"), HasSubstr("40"), HasSubstr("pids.max"), HasSubstr("30"),
                    HasSubstr("ulimit -v"), HasSubstr("-t")));
  EXPECT_THAT(ExplainFileLimits(limits), AllOf(HasSubstr("16"), HasSubstr("ulimit -n")));
  EXPECT_THAT(ExplainFileSizeLimit(limits), AllOf(HasSubstr("1.00 MB"), HasSubstr("ulimit -f")));
}

TEST(ExplainLimits, SaysThatTheMachineHasNoMoreWhereNothingIsLimited) {
  const ProcessLimits limits;
  EXPECT_THAT(ExplainMemoryLimits(limits), AllOf(HasSubstr("machine"), Not(HasSubstr("ulimit"))));
  EXPECT_THAT(ExplainThreadLimits(limits), AllOf(HasSubstr("machine"), Not(HasSubstr("ulimit"))));
  EXPECT_EQ(ExplainFileSizeLimit(limits), "");
}

TEST(ReadProcessLimitsTest, ReadsTheControlGroups) {
  SystemTreeBuilder system;
  system.Put("proc/self/cgroup", "0::/box\n").Put("sys/fs/cgroup/box/pids.max", "12\n");
  EXPECT_EQ(ReadProcessLimits(system.tree()).group_threads, 12U);
}

// What follows changes the process, so a child does it.
void Limit(__rlimit_resource resource, rlim_t soft, rlim_t hard) {
  const struct rlimit limit = {soft, hard};
  if (::setrlimit(resource, &limit) != 0) std::_Exit(77);
}

TEST(AdaptProcessLimitsTest, RaisesOpenFilesToTheHardLimit) {
  const auto child = [] {
    Limit(RLIMIT_NOFILE, 20, 100);
    AdaptProcessLimits();
    std::_Exit(ReadProcessLimits().open_files == 100U ? 0 : 1);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(0), "");
}

TEST(AdaptProcessLimitsTest, AWriteBeyondTheFileSizeFailsInsteadOfEndingTheProcess) {
  const auto child = [] {
    Limit(RLIMIT_FSIZE, 10, 10);
    AdaptProcessLimits();
    std::FILE* const file = std::tmpfile();
    const char text[20] = {};
    const bool fails = ::pwrite(fileno(file), text, sizeof(text), 10) < 0 && errno == EFBIG;
    std::_Exit(fails ? 0 : 1);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(0), "");
}

TEST(AdaptProcessLimitsTest, RefusesAStackThatIsTooSmall) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more stack than this leaves";
  const auto child = [] {
    Limit(RLIMIT_STACK, 65536, 65536);
    try {
      AdaptProcessLimits();
    } catch (const Error& error) {
      std::_Exit(std::string(error.what()).find("ulimit -s") != std::string::npos ? 0 : 1);
    }
    std::_Exit(2);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(0), "");
}

TEST(ThreadPoolTest, AThreadThatIsRefusedIsAnError) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory has no limit";
  const auto child = [] {
    Limit(RLIMIT_AS, 150'000'000, 150'000'000);  // room for the stacks of some
    try {
      ThreadPool pool(1000);
    } catch (const Error& error) {
      const std::string message = error.what();
      const bool names = message.find("of 1000") != std::string::npos &&
                         message.find("ulimit -v") != std::string::npos;
      std::_Exit(error.code() == ErrorCode::kRuntime && names ? 0 : 1);
    }
    std::_Exit(2);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace thimble
