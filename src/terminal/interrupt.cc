#include "terminal/interrupt.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>

#include "io/output_file.h"

namespace thimble {
namespace {

volatile std::sig_atomic_t interrupts = 0;
volatile std::sig_atomic_t ending = 0;
volatile std::sig_atomic_t wake_descriptor = -1;

// Any thread may run a handler, so the one that waits for input is woken by a descriptor.
void Wake() {
  const int error = errno;
  const uint64_t one = 1;
  if (wake_descriptor >= 0 && ::write(wake_descriptor, &one, sizeof(one)) < 0) {
    // It holds more signals than anybody counts.
  }
  errno = error;
}

void OnInterrupt(int) {
  interrupts = interrupts + 1;
  Wake();
}

// Once is enough: a lost connection comes twice, from the kernel and from the shell.
void OnEnd(int) {
  if (interrupts == 0) interrupts = 1;
  ending = 1;
  Wake();
}

// The second signal of a kind ends the process, as it would have done by itself.
void OnFirstOrSecond(int signal) {
  static volatile std::sig_atomic_t terms = 0;
  static volatile std::sig_atomic_t ctrl_cs = 0;
  volatile std::sig_atomic_t& count = signal == SIGTERM ? terms : ctrl_cs;
  count = count + 1;
  interrupts = interrupts + 1;
  if (count < 2) return;
  RemoveHiddenOutputFiles();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

// A signal that is ignored stays ignored: `nohup` wants that of SIGHUP, a shell of the SIGINT of
// what runs in its background.
void Catch(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = handler;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void CatchInterrupts() {
  for (const int signal : {SIGINT, SIGTERM}) Catch(signal, OnFirstOrSecond);
  Catch(SIGHUP, OnInterrupt);
}

void CountInterrupts() {
  if (wake_descriptor < 0) wake_descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  Catch(SIGINT, OnInterrupt);
  for (const int signal : {SIGTERM, SIGHUP}) Catch(signal, OnEnd);
}

int InterruptDescriptor() { return wake_descriptor; }

void DrainInterrupts() {
  uint64_t count = 0;
  if (wake_descriptor >= 0 && ::read(wake_descriptor, &count, sizeof(count)) < 0)
    return;  // none came
}

int NumInterrupts() { return interrupts; }

void ForgetInterrupts() { interrupts = 0; }

bool Interrupted() { return interrupts != 0; }

bool Ending() { return ending != 0; }

}  // namespace thimble
