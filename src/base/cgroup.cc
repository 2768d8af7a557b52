#include "base/cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

namespace thimble {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoMemoryLimit = int64_t{1} << 62;

// The group's path inside the hierarchy that serves `controller`; "" names version 2.
std::optional<std::string> GroupPath(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::stringstream names(line.substr(first + 1, second - first - 1));
    if (controller.empty() && names.str().empty()) return line.substr(second + 1);
    for (std::string name; std::getline(names, name, ',');) {
      if (name == controller) return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// Calls `visit` with the group's folder under `mount`, then each parent's. Inside a container the
// path may name folders that only the host sees; those that are missing are passed over.
void ForEachGroup(const fs::path& mount, std::string path,
                  const std::function<void(const fs::path&)>& visit) {
  while (true) {
    const fs::path folder = mount / fs::path(path).relative_path();
    std::error_code ignored;
    if (fs::is_directory(folder, ignored)) visit(folder);
    if (path.empty() || path == "/") return;
    path = fs::path(path).parent_path().string();
  }
}

std::optional<int64_t> ReadNumber(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

// The value of `key` in a file of "key value" lines, 0 where absent.
uint64_t ReadField(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  for (uint64_t value = 0; file >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

template <typename T>
void TakeLess(std::optional<T>& least, T value) {
  least = least ? std::min(*least, value) : value;
}

std::optional<double> QuotaOf(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

uint64_t Left(int64_t limit, int64_t used, uint64_t droppable) {
  const uint64_t held = static_cast<uint64_t>(std::max<int64_t>(used, 0));
  const uint64_t bound = held - std::min(held, droppable);
  const uint64_t most = static_cast<uint64_t>(std::max<int64_t>(limit, 0));
  return most - std::min(most, bound);
}

}  // namespace

std::optional<double> CgroupCpuQuota() {
  std::optional<double> least;
  if (const auto path = GroupPath("")) {
    ForEachGroup("/sys/fs/cgroup", *path, [&](const fs::path& folder) {
      std::ifstream file(folder / "cpu.max");
      int64_t quota = 0;
      int64_t period = 0;
      if (!(file >> quota >> period)) return;  // "max" or no such file
      if (const auto cpus = QuotaOf(quota, period)) TakeLess(least, *cpus);
    });
  }
  if (const auto path = GroupPath("cpu")) {
    ForEachGroup("/sys/fs/cgroup/cpu", *path, [&](const fs::path& folder) {
      const auto quota = ReadNumber(folder / "cpu.cfs_quota_us");
      const auto period = ReadNumber(folder / "cpu.cfs_period_us");
      if (!quota || !period) return;
      if (const auto cpus = QuotaOf(*quota, *period)) TakeLess(least, *cpus);
    });
  }
  return least;
}

std::optional<uint64_t> CgroupMemoryLimit() {
  std::optional<uint64_t> least;
  const auto visit = [&](const char* controller, const char* mount, const char* name) {
    const auto path = GroupPath(controller);
    if (!path) return;
    ForEachGroup(mount, *path, [&](const fs::path& folder) {
      const auto limit = ReadNumber(folder / name);
      // Version 1 says "no limit" by a number near the largest.
      if (limit && *limit >= 0 && *limit < kNoMemoryLimit) {
        TakeLess(least, static_cast<uint64_t>(*limit));
      }
    });
  };
  visit("", "/sys/fs/cgroup", "memory.max");
  visit("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes");
  return least;
}

std::optional<uint64_t> CgroupMemoryAvailable() {
  std::optional<uint64_t> least;
  if (const auto path = GroupPath("")) {
    ForEachGroup("/sys/fs/cgroup", *path, [&](const fs::path& folder) {
      const auto limit = ReadNumber(folder / "memory.max");
      const auto used = ReadNumber(folder / "memory.current");
      if (!limit || !used) return;
      TakeLess(least, Left(*limit, *used, ReadField(folder / "memory.stat", "inactive_file")));
    });
  }
  if (const auto path = GroupPath("memory")) {
    ForEachGroup("/sys/fs/cgroup/memory", *path, [&](const fs::path& folder) {
      const auto limit = ReadNumber(folder / "memory.limit_in_bytes");
      const auto used = ReadNumber(folder / "memory.usage_in_bytes");
      if (!limit || !used) return;
      TakeLess(least,
               Left(*limit, *used, ReadField(folder / "memory.stat", "total_inactive_file")));
    });
  }
  return least;
}

}  // namespace thimble
