#include "doctor/machine_facts.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/byte_size.h"
#include "base/cgroup.h"

namespace thimble {
namespace {

// What follows "name :" in a /proc file, without the blanks before it.
std::string ReadProcField(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const size_t start = line.find_first_not_of(" \t:", name.size());
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return {};
}

// A "123 kB" field of /proc/meminfo in bytes.
uint64_t ReadMemInfo(std::string_view name) {
  std::istringstream text(ReadProcField("/proc/meminfo", name));
  uint64_t kibibytes = 0;
  text >> kibibytes;
  return kibibytes * kKiB;
}

// The type of the mount that `path` lies under: the longest one that is a prefix of it, the last
// where several are mounted on the same place.
std::string MountType(const std::filesystem::path& path) {
  std::ifstream file("/proc/self/mountinfo");
  std::string type;
  size_t longest = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::string mount;
    for (int i = 0; i < 5 && words >> word; ++i) mount = word;
    while (words >> word && word != "-") {
    }
    if (!(words >> word)) continue;
    const std::string text = path.string();
    const bool covers = mount == "/" || text == mount || text.starts_with(mount + "/");
    if (!covers || mount.size() < longest) continue;
    longest = mount.size();
    type = word;
  }
  return type;
}

}  // namespace

MachineFacts ReadMachineFacts() {
  MachineFacts facts;
  facts.cpu = ReadProcField("/proc/cpuinfo", "model name");
  facts.memory_bytes = TotalMemory();
  facts.available_bytes = AvailableMemory();
  facts.cgroup_limit_bytes = CgroupMemoryLimit();
  if (facts.cgroup_limit_bytes && *facts.cgroup_limit_bytes >= facts.memory_bytes) {
    facts.cgroup_limit_bytes.reset();
  }
  facts.swap_bytes = ReadMemInfo("SwapTotal");
  facts.swap_used_bytes = facts.swap_bytes - std::min(facts.swap_bytes, ReadMemInfo("SwapFree"));
  facts.ceiling = ReadMemoryCeiling();
  facts.limits = ReadProcessLimits();
  std::error_code ignored;
  if (!std::filesystem::exists("/proc/self/status", ignored)) facts.missing.emplace_back("/proc");
  if (!std::filesystem::exists("/sys/devices/system", ignored)) facts.missing.emplace_back("/sys");
  return facts;
}

FileSystemFacts ReadFileSystemFacts(const std::filesystem::path& folder) {
  constexpr std::array<std::string_view, 8> kRemote = {"nfs", "nfs4", "cifs",     "smb3",
                                                       "9p",  "ceph", "virtiofs", "lustre"};
  FileSystemFacts facts;
  std::error_code error;
  const auto path = std::filesystem::canonical(folder, error);
  if (error) return facts;
  facts.type = MountType(path);
  facts.is_remote = facts.type.starts_with("fuse") ||
                    std::find(kRemote.begin(), kRemote.end(), facts.type) != kRemote.end();
  const auto space = std::filesystem::space(path, error);
  if (!error) facts.free_bytes = space.available;
  return facts;
}

}  // namespace thimble
