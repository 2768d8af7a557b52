#pragma once

namespace thimble {

/// From now on the first Ctrl-C, SIGTERM or SIGHUP (a lost connection) only sets a flag, so that
/// the work can end cleanly and save its results; a second Ctrl-C or SIGTERM ends the process at
/// once. Signals that were ignored stay ignored.
void CatchInterrupts();

/// From now on Ctrl-C only counts, each time; it also ends a wait for input. SIGTERM and SIGHUP
/// count as one, however often they come, and ask the program to end.
void CountInterrupts();
/// How many came since ForgetInterrupts.
int NumInterrupts();
void ForgetInterrupts();

/// A descriptor to poll for, which becomes readable when a signal is counted: a wait for input
/// must not miss one that comes just before it. Where CountInterrupts catches them.
int InterruptDescriptor();
/// Makes it unreadable again.
void DrainInterrupts();

/// True once the user has asked to stop.
bool Interrupted();
/// True once SIGTERM or SIGHUP came, where CountInterrupts catches them.
bool Ending();

}  // namespace thimble
