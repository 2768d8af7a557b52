#pragma once

#include <memory>
#include <optional>
#include <string>

namespace thimble {

/// Reads what a user types: with editing and history at a terminal, plainly elsewhere.
class LineReader {
 public:
  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// Whether standard input is a terminal.
  bool interactive() const { return editor_ != nullptr; }
  /// The next message: one line; several where a line ends in a backslash, or between two lines of
  /// three double quotes. Nothing at the end of the input. Empty where Ctrl-C was pressed.
  std::optional<std::string> Read(const std::string& prompt);

 private:
  struct Editor;
  std::optional<std::string> ReadLine(const std::string& prompt);

  std::unique_ptr<Editor> editor_;
};

}  // namespace thimble
