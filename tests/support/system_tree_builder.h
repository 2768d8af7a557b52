#pragma once

#include <filesystem>
#include <string>

#include "base/system_tree.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {

/// A made-up /proc and /sys.
class SystemTreeBuilder {
 public:
  /// `path` without a leading slash.
  SystemTreeBuilder& Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((dir_ / path).parent_path());
    WriteText(dir_ / path, text);
    return *this;
  }
  SystemTree tree() const { return {dir_.path()}; }

 private:
  TempDir dir_;
};

}  // namespace thimble
