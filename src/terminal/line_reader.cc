#include "terminal/line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <iostream>

namespace thimble {
namespace {

constexpr int kHistorySize = 1000;
constexpr const char* kQuotes = "\"\"\"";

}  // namespace

struct LineReader::Editor {
  Editor() : history(history_init()), line(NewLine()) {
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistorySize);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(line, EL_CLIENTDATA, this);
    el_set(line, EL_PROMPT, &ShowPrompt);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_HIST, ::history, history);
    el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(line, nullptr);
  }
  ~Editor() {
    el_end(line);
    history_end(history);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  static EditLine* NewLine() {
    // Without this, libedit takes UTF-8 for single bytes.
    std::setlocale(LC_CTYPE, "");
    return el_init("thimble", stdin, stdout, stderr);
  }
  static char* ShowPrompt(EditLine* line) {
    Editor* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }

  History* history;
  EditLine* line;
  std::string prompt;
};

LineReader::LineReader() {
  if (::isatty(STDIN_FILENO) == 1) editor_ = std::make_unique<Editor>();
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::ReadLine(const std::string& prompt) {
  std::string line;
  if (editor_ == nullptr) {
    if (!std::getline(std::cin, line)) return std::nullopt;
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }
  editor_->prompt = prompt;
  int count = 0;
  errno = 0;
  const char* text = el_gets(editor_->line, &count);
  if (text == nullptr || count <= 0) {
    if (errno != EINTR) return std::nullopt;
    std::fputs("^C\n", stdout);
    el_reset(editor_->line);
    return line;
  }
  line = text;
  if (line.ends_with('\n')) line.pop_back();
  HistEvent event;
  if (!line.empty()) ::history(editor_->history, &event, H_ENTER, line.c_str());
  return line;
}

std::optional<std::string> LineReader::Read(const std::string& prompt) {
  auto line = ReadLine(prompt);
  if (!line) return std::nullopt;
  std::string message;
  if (*line == kQuotes) {
    for (bool first = true; (line = ReadLine("... ")) && *line != kQuotes; first = false) {
      message += (first ? "" : "\n") + *line;
    }
    return message;
  }
  while (line && line->ends_with('\\')) {
    line->pop_back();
    message += *line + "\n";
    line = ReadLine("... ");
  }
  return message + line.value_or("");
}

}  // namespace thimble
