#include "terminal/live_status.h"

#include <unistd.h>

#include "base/byte_size.h"
#include "memory/process_memory.h"
#include "terminal/output.h"

namespace thimble {

LiveStatus::LiveStatus(const Engine& engine, bool wanted)
    : engine_(engine),
      active_(wanted && ::isatty(STDERR_FILENO) == 1),
      last_stats_(engine.stats()) {}

void LiveStatus::Show(std::string_view what, size_t done_tokens, size_t layer) {
  constexpr auto kPause = std::chrono::milliseconds(200);
  const auto now = Clock::now();
  if (!active_ || now - last_ < kPause) return;
  const auto seconds_of = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  const EngineStats stats = engine_.stats();
  const auto read = static_cast<double>(stats.ReadBytes() - last_stats_.ReadBytes());
  const ProcessMemory memory = ReadProcessMemory();
  Note(
      "\r\033[K{}: {} tokens, {:.3g} tokens/s, layer {} of {}, memory {} of {}, {}/s read, "
      "{:.0f} % expert "
      "hits, {} faults",
      what, done_tokens, static_cast<double>(done_tokens) / seconds_of(now - start_), layer + 1,
      engine_.config().num_layers(), FormatBytes(memory.rss_bytes),
      FormatBytes(engine_.budget_bytes()),
      FormatBytes(static_cast<uint64_t>(read / seconds_of(now - last_))), 100 * stats.HitRate(),
      memory.major_faults);
  last_ = now;
  last_stats_ = stats;
  shown_ = true;
}

void LiveStatus::BeginText() {
  if (!active_) return;
  start_ = Clock::now();
  Clear();
  active_ = ::isatty(STDOUT_FILENO) != 1;
}

void LiveStatus::Clear() {
  if (shown_) Note("\r\033[K");
  shown_ = false;
}

}  // namespace thimble
