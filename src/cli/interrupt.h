#pragma once

namespace thimble::cli {

/// From now on the first Ctrl-C (or SIGTERM) only sets a flag, so that the work can end cleanly
/// with its report; the second of the same kind ends the process at once.
void CatchInterrupts();

/// True once the user has asked to stop.
bool Interrupted();

}  // namespace thimble::cli
