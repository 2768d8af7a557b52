#pragma once

namespace thimble {

/// From now on the first Ctrl-C (or SIGTERM) only sets a flag, so that the work can end cleanly
/// with its report; the second of the same kind ends the process at once.
void CatchInterrupts();

/// From now on Ctrl-C only counts, each time; it also ends a wait for input.
void CountInterrupts();
/// How often since it was last forgotten.
int NumInterrupts();
void ForgetInterrupts();

/// True once the user has asked to stop.
bool Interrupted();

}  // namespace thimble
