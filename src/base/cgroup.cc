#include "base/cgroup.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

namespace thimble {
namespace {

namespace fs = std::filesystem;

// Version 1 says "no limit" by a number near the largest.
constexpr uint64_t kNoMemoryLimit = uint64_t{1} << 62;

// The group's path inside the hierarchy that serves `controller`; "" names version 2. Without /proc
// it is unknown, and the root of the mount, which in a container is its own group, stands in.
std::optional<std::string> GroupPath(const SystemTree& tree, const std::string& controller) {
  std::ifstream file(tree.At("proc/self/cgroup"));
  if (!file) return "/";
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

// The group's folder under `mount`, then each parent's. Inside a container the path may name
// folders that only the host sees; those that are missing are passed over.
std::vector<fs::path> GroupFolders(const fs::path& mount, std::string path) {
  std::vector<fs::path> folders;
  while (true) {
    const fs::path folder = mount / fs::path(path).relative_path();
    std::error_code ignored;
    if (fs::is_directory(folder, ignored)) folders.push_back(folder);
    if (path.empty() || path == "/") return folders;
    path = fs::path(path).parent_path().string();
  }
}

// The groups of version 2, where it is mounted alone or beside version 1.
std::vector<fs::path> UnifiedFolders(const SystemTree& tree) {
  const auto path = GroupPath(tree, "");
  if (!path) return {};
  std::vector<fs::path> folders = GroupFolders(tree.At("sys/fs/cgroup/unified"), *path);
  const auto alone = GroupFolders(tree.At("sys/fs/cgroup"), *path);
  folders.insert(folders.end(), alone.begin(), alone.end());
  return folders;
}

// The groups of one controller of version 1.
std::vector<fs::path> ControllerFolders(const SystemTree& tree, const std::string& controller) {
  const auto path = GroupPath(tree, controller);
  if (!path) return {};
  return GroupFolders(tree.At("sys/fs/cgroup/" + controller), *path);
}

// Nothing where the file is missing, says "max", or holds a negative number.
std::optional<uint64_t> ReadNumber(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number) || number < 0) return std::nullopt;
  return static_cast<uint64_t>(number);
}

// The sum of the values of `keys` in a file of "key value" lines.
uint64_t SumFields(const fs::path& path, std::initializer_list<const char*> keys) {
  std::ifstream file(path);
  std::string name;
  uint64_t sum = 0;
  for (uint64_t value = 0; file >> name >> value;) {
    if (std::find(keys.begin(), keys.end(), name) != keys.end()) sum += value;
  }
  return sum;
}

template <typename T>
void TakeLess(std::optional<T>& least, std::optional<T> value) {
  if (value) least = least ? std::min(*least, *value) : value;
}

std::optional<double> QuotaOf(std::optional<uint64_t> quota, std::optional<uint64_t> period) {
  if (quota.value_or(0) == 0 || period.value_or(0) == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// What one version calls its files and fields.
struct MemoryFiles {
  std::array<const char*, 2> limits;  // "" for none
  const char* used;
  const char* inactive;
  const char* active;
  const char* reclaimable;
};
constexpr MemoryFiles kUnifiedFiles = {{"memory.max", "memory.high"},
                                       "memory.current",
                                       "inactive_file",
                                       "active_file",
                                       "slab_reclaimable"};
constexpr MemoryFiles kVersion1Files = {{"memory.limit_in_bytes", ""},
                                        "memory.usage_in_bytes",
                                        "total_inactive_file",
                                        "total_active_file",
                                        "total_slab_reclaimable"};

void VisitLimits(const fs::path& folder, const MemoryFiles& files,
                 const std::function<void(const CgroupMemory&)>& visit) {
  for (const char* name : files.limits) {
    if (*name == '\0') continue;
    const auto limit = ReadNumber(folder / name);
    if (!limit || *limit >= kNoMemoryLimit) continue;
    const fs::path stat = folder / "memory.stat";
    const uint64_t used = ReadNumber(folder / files.used).value_or(0);
    const uint64_t inactive = SumFields(stat, {files.inactive});
    const uint64_t droppable = inactive + SumFields(stat, {files.active, files.reclaimable});
    CgroupMemory memory;
    memory.limit_bytes = *limit;
    memory.setting = (folder / name).string();
    memory.droppable_bytes = std::min(used, droppable);
    memory.first_drop_bytes = std::min(memory.droppable_bytes, inactive);
    memory.held_bytes = used - memory.droppable_bytes;
    visit(memory);
  }
}

void ForEachMemoryLimit(const SystemTree& tree,
                        const std::function<void(const CgroupMemory&)>& visit) {
  for (const auto& folder : UnifiedFolders(tree)) VisitLimits(folder, kUnifiedFiles, visit);
  for (const auto& folder : ControllerFolders(tree, "memory")) {
    VisitLimits(folder, kVersion1Files, visit);
  }
}

}  // namespace

std::optional<double> CgroupCpuQuota(const SystemTree& tree) {
  std::optional<double> least;
  for (const auto& folder : UnifiedFolders(tree)) {
    std::ifstream file(folder / "cpu.max");
    int64_t quota = 0;
    int64_t period = 0;
    if (!(file >> quota >> period)) continue;  // "max" or no such file
    TakeLess(least, QuotaOf(quota > 0 ? quota : 0, period > 0 ? period : 0));
  }
  for (const auto& folder : ControllerFolders(tree, "cpu")) {
    TakeLess(least, QuotaOf(ReadNumber(folder / "cpu.cfs_quota_us"),
                            ReadNumber(folder / "cpu.cfs_period_us")));
  }
  return least;
}

std::optional<uint64_t> CgroupTaskLimit(const SystemTree& tree) {
  std::optional<uint64_t> least;
  for (const auto& folder : UnifiedFolders(tree)) TakeLess(least, ReadNumber(folder / "pids.max"));
  for (const auto& folder : ControllerFolders(tree, "pids")) {
    TakeLess(least, ReadNumber(folder / "pids.max"));
  }
  return least;
}

std::optional<CgroupMemory> TightestMemoryGroup(uint64_t own_bytes, const SystemTree& tree) {
  std::optional<CgroupMemory> tightest;
  ForEachMemoryLimit(tree, [&](const CgroupMemory& memory) {
    if (!tightest || memory.RoomBytes(own_bytes) < tightest->RoomBytes(own_bytes)) {
      tightest = memory;
    }
  });
  return tightest;
}

std::optional<uint64_t> CgroupMemoryLimit(const SystemTree& tree) {
  std::optional<uint64_t> least;
  ForEachMemoryLimit(tree, [&](const CgroupMemory& memory) {
    TakeLess(least, std::optional<uint64_t>(memory.limit_bytes));
  });
  return least;
}

std::optional<uint64_t> CgroupMemoryAvailable(const SystemTree& tree) {
  std::optional<uint64_t> least;
  ForEachMemoryLimit(tree, [&](const CgroupMemory& memory) {
    TakeLess(least, std::optional<uint64_t>(memory.AvailableBytes()));
  });
  return least;
}

}  // namespace thimble
