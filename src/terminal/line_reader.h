#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace thimble {

/// Reads what a user types: with editing and history at a terminal, line by line elsewhere. At a
/// terminal a pasted text, whatever its lines, goes into the line that is edited and becomes one
/// message (bracketed paste).
class LineReader {
 public:
  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// Whether standard input is a terminal.
  bool interactive() const { return editor_ != nullptr; }
  /// The next message: one line; several where a line ends in a backslash, or between two lines of
  /// three double quotes. Nothing at the end of the input, or when the program is asked to end.
  /// Empty after Ctrl-C. Error(kRuntime) where standard input cannot be read.
  std::optional<std::string> Read(const std::string& prompt);

 private:
  struct Editor;
  std::optional<std::string> ReadLine(const std::string& prompt);
  std::optional<std::string> ReadEdited(const std::string& prompt);

  std::unique_ptr<Editor> editor_;
};

/// What a terminal sent between the marks of a paste, as text for the line: line ends are newlines,
/// none at the end; other control characters but tabs are left out.
std::wstring PastedText(std::wstring_view sent);

}  // namespace thimble
