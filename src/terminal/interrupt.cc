#include "terminal/interrupt.h"

#include <csignal>

namespace thimble {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void OnSignal(int) { interrupted = interrupted + 1; }

}  // namespace

void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void CountInterrupts() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
}

int NumInterrupts() { return interrupted; }

void ForgetInterrupts() { interrupted = 0; }

bool Interrupted() { return interrupted != 0; }

}  // namespace thimble
