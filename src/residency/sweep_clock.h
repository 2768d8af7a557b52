#pragma once

#include <chrono>

#include "io/read_batch.h"

namespace thimble {

/// Time for which the drive and the cores were the limit. Both add up to the sweeps' total time.
struct SweepTimes {
  double io_bound_seconds = 0;       // the cores waited for data
  double compute_bound_seconds = 0;  // the cores computed while nobody waited for the drive
};

/// Adds the lifetime of this object, one sweep, to `times`, even if the sweep fails. Used by the
/// thread that runs the sweep, the only one that waits at `monitor`; while it waits, the others
/// have nothing to compute. Costs two clock reads a sweep.
class SweepClock {
 public:
  using Now = std::chrono::steady_clock::time_point (*)();
  SweepClock(const ReadMonitor& monitor, SweepTimes& times,
             Now now = std::chrono::steady_clock::now)
      : monitor_(monitor),
        times_(times),
        now_(now),
        waited_before_(monitor.waited_seconds()),
        start_(now()) {}
  ~SweepClock() {
    const std::chrono::duration<double> taken = now_() - start_;
    const double waited = monitor_.waited_seconds() - waited_before_;
    times_.io_bound_seconds += waited;
    times_.compute_bound_seconds += taken.count() - waited;
  }
  SweepClock(const SweepClock&) = delete;
  SweepClock& operator=(const SweepClock&) = delete;

 private:
  const ReadMonitor& monitor_;
  SweepTimes& times_;
  const Now now_;
  const double waited_before_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace thimble
