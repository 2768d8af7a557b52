#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu_topology.h"

namespace thimble {

/// Whether compute threads are bound to CPUs, one for each physical core.
enum class Pinning : uint8_t {
  kAuto,  // where the machine has several memory nodes and this process has its cores to itself
  kOn,    // wherever there is a core for each thread
  kOff,
};

/// Where the threads of a process run. On a machine with several nodes a thread that the system
/// moves finds its caches cold and its memory far away.
struct ThreadPlacement {
  std::vector<size_t> compute;  // the CPU of each compute thread; empty: none is bound
  std::vector<size_t> reading;  // CPUs for the threads that read; empty: any
  std::string reason;           // why none is bound; empty where they are

  bool binds() const { return !compute.empty(); }
};

/// Takes one CPU of each physical core of the affinity mask, the fastest cores first, spread over
/// the nodes. Binds none, and says why, where there are fewer cores than threads; and with kAuto
/// where there is one node, where cores or the cgroup's quota are shared with other processes, and
/// where `load` (LoadAverage) says that others compute.
ThreadPlacement PlaceThreads(const CpuTopology& topology, size_t num_threads, Pinning pinning,
                             double load);

/// Binds a thread to some CPUs until its end.
class AffinityScope {
 public:
  /// The calling thread; no CPUs: nothing is done. A refusal leaves it as it was.
  explicit AffinityScope(const std::vector<size_t>& cpus);
  /// Restores what was. May run on another thread than the constructor.
  ~AffinityScope();
  AffinityScope(const AffinityScope&) = delete;
  AffinityScope& operator=(const AffinityScope&) = delete;

  /// Whether it was made by the calling thread.
  bool IsOfThisThread() const;

 private:
  pid_t thread_;
  cpu_set_t previous_;
  bool is_bound_ = false;
};

/// "0-3,8".
std::string FormatCpuList(std::vector<size_t> cpus);

}  // namespace thimble
