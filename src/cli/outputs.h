#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <vector>

namespace thimble::cli {

/// Error(kUsage) where two of the files that a command is to write are the same one. Empty names
/// are ignored; several outputs may go to one pipe or device.
void CheckDistinct(const std::vector<std::filesystem::path>& files);

/// Brings a result to `named`, the file that the user wants it in, by `save`. Where that fails,
/// `save_elsewhere` is tried with names beginning like it in $TMPDIR, $HOME and /tmp, and the error
/// then says where the result is. Never overwrites anything there.
void SaveOrRescue(const std::filesystem::path& named, const std::function<void()>& save,
                  const std::function<void(const std::filesystem::path&)>& save_elsewhere);

/// The last steps of a command, each of which is done whatever became of the others.
class LastSteps {
 public:
  void Do(const std::function<void()>& step);
  /// Throws the first failure, if any; later ones have been told on standard error.
  void ThrowFailure() const;

 private:
  std::exception_ptr failure_;
};

}  // namespace thimble::cli
